"""Stochastic runs: many steps inside XLA."""
