"""Optimizers that update a matrix as a whole: orthogonalised momentum (Muon and relatives), and others' rules."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
