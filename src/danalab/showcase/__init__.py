"""Optimizers side by side on small problems, in minutes on a laptop CPU."""
