"""Serving: from a conversation to the engine's requests and back; an HTTP API in OpenAI's schema, and the chat page."""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
