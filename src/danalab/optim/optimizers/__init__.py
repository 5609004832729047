"""Optimizer classes: the base, element-wise and matrix optimizers, and wrappers around another optimizer."""
