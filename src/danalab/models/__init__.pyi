from .canonical import canonical_arrays as canonical_arrays
from .canonical import load_canonical as load_canonical
from .config import ModelConfig as ModelConfig
from .decoder import Decoder as Decoder
from .decoder import build_model as build_model
