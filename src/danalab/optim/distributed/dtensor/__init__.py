"""Optimizers of the registry on DTensor parameters, with the results of a single process."""
