from .adapter import DTensorAdapter as DTensorAdapter
from .adapter import build_adapted as build_adapted
