"""Optimizers that orthogonalise the momentum of matrices: Muon, D-Muon, Manau."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
