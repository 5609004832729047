from .engine import Engine as Engine
from .engine import Statistics as Statistics
from .generator import Continuation as Continuation
from .generator import TextGenerator as TextGenerator
from .request import Completion as Completion
from .request import FinishReason as FinishReason
from .request import Request as Request
from .request import SamplingParameters as SamplingParameters
from .request import TextStream as TextStream
from .request import TokenConstraint as TokenConstraint
from .request import TokenEvent as TokenEvent

class JsonConstraint:
    def __init__(self, tokenizer: object, schema: object = None, *, whitespace: bool = False) -> None: ...
    def copy(self) -> JsonConstraint: ...
    def mask(self) -> object: ...
    def advance(self, token: int) -> None: ...
