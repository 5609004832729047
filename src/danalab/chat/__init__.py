"""Chat: conversations, tasks, rewards, answers; what training, evaluation, terminal and server share."""

from danalab.chat.marks import ChatFormat, render_conversation
from danalab.chat.messages import Conversation, Message
from danalab.inference.engine import Engine

__all__ = ["ChatFormat", "Conversation", "Engine", "Message", "render_conversation"]
