"""The ladder: many runs, the laws through them, and the compute that an optimizer saves."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
