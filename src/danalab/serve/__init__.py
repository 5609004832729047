"""Serving: from a conversation to the engine's requests and back; an HTTP API in OpenAI's schema, and the chat page."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
