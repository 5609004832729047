"""Memory of a model, estimated from its configuration before anything is allocated."""

import torch

from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.scaling.dimensions import parameter_count
from danalab.scaling.hardware import host_memory

_BLOCK_OBJECTS = 50_000
"""Python objects of one block [bytes]."""


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
