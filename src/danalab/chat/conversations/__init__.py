"""Conversations: what people write (JSONL), checked, and as token ids with a mask of what the model learns to say."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
