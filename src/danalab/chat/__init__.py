"""Chat: what training, evaluation, terminal and server share; conversations, tasks, rewards, tool calls, answers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
