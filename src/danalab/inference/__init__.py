"""Text from a model: sampling parameters, decoding with a cache, tokens to text."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
