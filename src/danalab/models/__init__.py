"""Models: one `ModelConfig`, one registry, shared blocks, and one short file for each architecture.

Names are loaded on first use, so `from danalab.models import ModelConfig` needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danalab.models.build import build_model
    from danalab.models.canonical import canonical_arrays, load_canonical
    from danalab.models.config import ModelConfig
    from danalab.models.decoder import Decoder
    from danalab.models.registry import MODELS, Architecture

_HOMES = {
    "build_model": "build",
    "canonical_arrays": "canonical",
    "load_canonical": "canonical",
    "ModelConfig": "config",
    "Decoder": "decoder",
    "MODELS": "registry",
    "Architecture": "registry",
}

__all__ = ["MODELS", "Architecture", "Decoder", "ModelConfig", "build_model", "canonical_arrays", "load_canonical"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
