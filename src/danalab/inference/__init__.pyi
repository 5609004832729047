from .generation import generate as generate
from .parameters import SamplingParameters as SamplingParameters
from .sampling import sample as sample
from .text import Continuation as Continuation
from .text import TextGenerator as TextGenerator
