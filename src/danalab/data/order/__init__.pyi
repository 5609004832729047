from .batches import Batches as Batches
from .batches import Sequential as Sequential
from .permutation import Permutation as Permutation
from .ramps import Ramp as Ramp
