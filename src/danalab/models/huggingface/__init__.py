"""Names of models in the format of transformers, which is an annex; they stay importable from here until 0.4."""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
