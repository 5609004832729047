"""Models: one `ModelConfig`, one decoder of shared blocks; architectures are rows of `danalab.models.architectures`.

torch is imported when a model is built: what only needs shapes (`danalab train --help`, `danalab plan`) starts without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from danalab.models.config import ModelConfig, parameter_count

if TYPE_CHECKING:
    import torch

    from danalab.models.decoder import Decoder

__all__ = ["ModelConfig", "build_model", "load_canonical"]

BLOCK_OBJECTS = 50_000  # Python objects of one block [bytes]


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

    from danalab.models.decoder import Decoder, materialise, require_memory

    dtype = dtype or torch.float32
    is_meta = torch.device(device).type == "meta"
    table = 4 * config.seq_len * config.rotated if config.architecture.rotary else 0
    weights = 0 if is_meta else parameter_count(config) * dtype.itemsize
    require_memory(weights + table + config.n_layers * BLOCK_OBJECTS, device, "the model")
    with torch.device("meta"):
        model = Decoder(config).to(dtype)
    if is_meta:
        return model
    materialise(model, device)
    model.init_weights(torch.Generator().manual_seed(seed), init)
    return model


def load_canonical(model: Decoder, arrays: Mapping[str, Any]) -> None:
    """Set all weights of `model` from arrays under their canonical names; see `danalab.models.canonical`."""
    from danalab.models import canonical

    canonical.load_canonical(model, arrays)
