"""The architectures by name, without torch; the table itself is `danalab.scaling.architectures`."""

from danalab.scaling.architectures import ARCHITECTURES as MODELS
from danalab.scaling.architectures import Architecture

__all__ = ["MODELS", "Architecture"]
