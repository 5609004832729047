"""Optimizers that update a matrix as a whole: orthogonalised momentum (Muon and relatives), and others' rules."""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
