"""Server: an HTTP API in OpenAI's schema over one engine, and the chat page."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
