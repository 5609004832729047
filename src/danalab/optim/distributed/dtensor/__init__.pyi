from .adapter import DTensorAdapter as DTensorAdapter
from .build import build_adapted as build_adapted
