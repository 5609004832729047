"""From a configuration to a model with weights; the memory that it takes, before anything is allocated."""

import torch

from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.scaling.dimensions import parameter_count
from danalab.scaling.hardware import host_memory

_BLOCK_OBJECTS = 50_000
"""Python objects of one block [bytes]."""


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


def model_bytes(config: ModelConfig, bytes_per_parameter: int = 4) -> int:
    """Bytes of the weights; 0 bytes per parameter: of what is allocated on every rank however weights are sharded."""
    table = 4 * config.seq_len * config.rotated if config.architecture.rotary else 0
    return parameter_count(config) * bytes_per_parameter + table + config.n_layers * _BLOCK_OBJECTS


def require_memory(needed: int, device: torch.device | str, subject: str) -> None:
    """Check that `needed` bytes fit on a device at all; meta: in the memory of the host."""
    device = torch.device(device)
    if device.type == "cuda":
        limit = torch.cuda.get_device_properties(device).total_memory
    else:
        limit = host_memory()
    if needed > limit:
        amount = f"{needed >> 30:,}" if needed < 1 << 100 else "more than 2^70"
        raise UserError(f"{subject} needs at least {amount} GiB of memory, but the device has {limit >> 30}")
