"""Text from a model: an engine with continuous batching, sampling parameters, constraints, tokens to text."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
