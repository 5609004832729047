from .answers import Engine as Engine
from .conversations import Conversation as Conversation
from .conversations import Message as Message
from .marks import ChatFormat as ChatFormat
from .marks import render_conversation as render_conversation
