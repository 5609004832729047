"""Models: one `ModelConfig`, one decoder of shared blocks; architectures are rows of `danalab.models.architectures`.

Names are loaded on first use, so `from danalab.models import ModelConfig` needs no torch.
"""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
