"""Hugging Face `transformers`: configurations and weights out and in."""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
