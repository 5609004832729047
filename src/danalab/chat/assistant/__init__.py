"""Assistant: from a conversation to the engine's requests, and from tokens to text, calculations and calls."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
