"""Checkpoints: written by all ranks beside training, committed atomically, verified before they are read."""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
