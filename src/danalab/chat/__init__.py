"""Chat: from a base model to one that answers; conversations, stages, tasks, evaluation, server."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
