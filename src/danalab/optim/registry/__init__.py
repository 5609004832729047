"""Optimizers by name: the catalogue of entries and `build_optimizer`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
