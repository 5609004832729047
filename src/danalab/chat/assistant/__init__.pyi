from .chat_model import ChatModel as ChatModel
from .chat_model import open_chat_model as open_chat_model
from .errors import RequestError as RequestError
from .plans import ChatQuestion as ChatQuestion
from .plans import Planner as Planner
from .session import ChatSession as ChatSession
