"""The weights of a model from a checkpoint of any layout, in one process, without torch.distributed.

Importing torch.distributed takes longer than decoding a short text.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from danalab.models.config import ModelConfig
from danalab.scaling.dimensions import parameter_count
from danalab.train.checkpoint.metadata import open_block, read_metadata, require_same_model
from danalab.train.checkpoint.store import DamagedCheckpointError

MODEL = "model."
"""Prefix of the names of a model's tensors."""


def require_size_of(folder: Path, config: ModelConfig) -> None:
    """Check before a model is built that the checkpoint holds one of its size.

    Raises:
        DamagedCheckpointError: it does not, or cannot be read.
    """
    found = {n: each for n, each in read_metadata(folder).state_dict_metadata.items() if n.startswith(MODEL)}
    values = sum(math.prod(entry.size) for entry in found.values())
    if config.n_layers > len(found) or parameter_count(config) > values:
        raise DamagedCheckpointError(
            f"{folder}: has {len(found):,} tensors of {values:,} values, too few for the model of config.json "
            f"({config.n_layers:,} layers, {parameter_count(config):,} parameters)"
        )


@torch.no_grad()
def read_weights(folder: Path, model: nn.Module) -> None:
    """Load the weights of a verified checkpoint, in place.

    Raises:
        DamagedCheckpointError: they cannot be read, or do not belong to this model.
    """
    target = {MODEL + name: value for name, value in model.state_dict().items()}
    metadata = read_metadata(folder)
    try:
        require_same_model(folder, metadata.state_dict_metadata, target, MODEL)
        places = {(index.fqn, index.offset): place for index, place in metadata.storage_data.items()}
        for name, tensor in target.items():
            _read(folder, metadata.state_dict_metadata[name].chunks, places, name, tensor)
    except DamagedCheckpointError:
        raise
    except Exception as error:  # a damaged file can fail with anything
        raise DamagedCheckpointError(f"{folder}: cannot be read: {type(error).__name__}: {error}") from error


def _read(
    folder: Path, blocks: Sequence[Any], places: Mapping[tuple[str, torch.Size], Any], name: str, target: Tensor
) -> None:
    """Read a tensor's blocks, which must cover it; `places` says where the bytes of a block are."""
    count = 0
    for block in blocks:
        part = target
        for dim, (start, length) in enumerate(zip(block.offsets, block.sizes, strict=True)):
            part = part.narrow(dim, start, length)
        place = places[name, block.offsets]
        with open(folder / place.relative_path, "rb") as file:
            stored = torch.load(open_block(file, place), map_location="cpu", weights_only=True)
        if stored.shape != part.shape:
            raise ValueError(f"a block of '{name}' has shape {list(stored.shape)} in place of {list(part.shape)}")
        part.copy_(stored)
        count += part.numel()
    if count != target.numel():
        raise ValueError(f"'{name}' has {count} of {target.numel()} values")
