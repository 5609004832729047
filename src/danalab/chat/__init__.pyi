from .answers import Engine as Engine
from .conversations import ChatFormat as ChatFormat
from .conversations import Conversation as Conversation
from .conversations import Message as Message
from .conversations import render_conversation as render_conversation
