"""Checkpoints: written by all ranks beside training, committed atomically, verified before they are read."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
