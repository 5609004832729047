"""Element-wise optimizers: one file for each family, with its classes, reference update, foreach update and kernel."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
