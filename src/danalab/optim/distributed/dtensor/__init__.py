"""Optimizers of the registry on DTensor parameters, with the results of a single process."""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
