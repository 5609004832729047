from .dataset import ArrayDataset as ArrayDataset
from .files import BadArrayError as BadArrayError
from .files import open_array as open_array
from .split import split_arrays as split_arrays
