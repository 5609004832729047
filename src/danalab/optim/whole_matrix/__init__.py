"""Optimizers of other authors that update a matrix as a whole, and other parameters by AdamW, without back ends."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
