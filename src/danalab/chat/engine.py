"""The engine that decodes, under the name that chat programs use."""

from danalab.inference import Engine

__all__ = ["Engine"]
