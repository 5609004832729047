"""Text from a model: an engine with continuous batching, sampling parameters, constraints, tokens to text."""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
