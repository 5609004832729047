"""Models: one `ModelConfig`, one decoder of shared blocks; architectures are rows of `danalab.models.architectures`.

torch is imported when a model is built: what only needs shapes (`danalab train --help`, `danalab plan`) starts without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from danalab.models.config import ModelConfig, build_model

if TYPE_CHECKING:
    from danalab.models.decoder import Decoder

__all__ = ["ModelConfig", "build_model", "load_canonical"]


def load_canonical(model: Decoder, arrays: Mapping[str, Any]) -> None:
    """Set all weights of `model` from arrays under their canonical names; see `danalab.models.canonical`."""
    from danalab.models import canonical

    canonical.load_canonical(model, arrays)
