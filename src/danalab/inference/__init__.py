"""Text from a model: decoding with a cache."""

from danalab.inference.generation import generate, sample

__all__ = ["generate", "sample"]
