from .conversations import ChatFormat as ChatFormat
from .conversations import Conversation as Conversation
from .conversations import Message as Message
from .conversations import render_conversation as render_conversation
from .engine import Engine as Engine
