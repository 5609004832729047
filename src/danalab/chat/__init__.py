"""Chat: what training, evaluation, terminal and server share; conversations, tasks, rewards, tool calls, answers."""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
