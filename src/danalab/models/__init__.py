"""Models: one `ModelConfig`, one decoder of shared blocks; architectures are rows of `danalab.models.architectures`.

torch is imported when a model is built: what only needs shapes (`danalab train --help`, `danalab plan`) starts without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError
from danalab.models.config import ModelConfig

if TYPE_CHECKING:
    import torch

    from danalab.models.decoder import Decoder

__all__ = ["ModelConfig", "build_model", "load_canonical"]


def build_model(
    config: ModelConfig,
    *,
    init: str | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> Decoder:
    """The model that `config` describes, with freshly drawn weights.

    The weights depend on `config`, `init` and `seed` only: they are drawn on the CPU in float32, then moved and cast.

    Args:
        init: "scaled-gpt", "karpathy-gpt2" or "standard"; None: as the architecture does.
        device: "meta" gives shapes without memory; shard, then call `to_empty` and `init_weights`.
        dtype: of the weights; None: float32.
    Raises:
        UserError: unknown initialisation, or a model larger than the device's memory.
    """
    import torch

    from danalab.models.decoder import Decoder, materialise

    try:
        with torch.device("meta"):
            model = Decoder(config).to(dtype or torch.float32)
    except (RuntimeError, TypeError) as error:  # of torch: a size beyond 64 bits
        raise UserError(f"there is no machine for a model of these sizes: {error}") from error
    if torch.device(device).type == "meta":
        return model
    materialise(model, device)
    model.init_weights(torch.Generator().manual_seed(seed), init)
    return model


def load_canonical(model: Decoder, arrays: Mapping[str, Any]) -> None:
    """Set all weights of `model` from arrays under their canonical names; see `danalab.models.canonical`."""
    from danalab.models import canonical

    canonical.load_canonical(model, arrays)
