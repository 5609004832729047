"""From a configuration to a model with weights."""

import torch

from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.models.memory import model_bytes, require_memory


def build_model(
    config: ModelConfig,
    *,
    init: str | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """The model that `config` describes, with freshly drawn weights.

    The weights depend on `config`, `init` and `seed` only: they are drawn on the CPU in float32, then moved and cast.

    Args:
        init: "scaled-gpt", "karpathy-gpt2" or "standard"; None: as the architecture does.
        device: "meta" gives shapes without memory; shard, then call `to_empty` and `init_weights`.
    Raises:
        UserError: unknown initialisation, or a model larger than the device's memory.
    """
    is_meta = torch.device(device).type == "meta"
    size = model_bytes(config, 0 if is_meta else dtype.itemsize)
    require_memory(size, device, "the model")
    with torch.device("meta"):
        model = Decoder(config).to(dtype)
    if is_meta:
        return model
    materialise(model, device)
    model.init_weights(torch.Generator().manual_seed(seed), init)
    return model


def materialise(model: Decoder, device: torch.device | str) -> Decoder:
    """Give a model on the meta device memory on `device`, in place, with undefined weights; returns it.

    As `Module.to_empty`, whose `empty_like` imports sympy.
    """
    return model._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=device))
