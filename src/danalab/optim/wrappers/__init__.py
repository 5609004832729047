"""Wrappers: optimizers around another one, which makes the steps (SNOO, SODA, EMA-Nesterov)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
