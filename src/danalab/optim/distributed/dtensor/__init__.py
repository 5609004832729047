"""Optimizers of the registry on DTensor parameters, with the results of a single process."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
