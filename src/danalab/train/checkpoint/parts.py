"""Parts of tensors, as ZeRO's ranks own them, in torch.distributed.checkpoint: each rank writes and reads its own.

A checkpoint does not tell that it was written so: a tensor of it is its blocks, whoever wrote them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from danalab.optim.distributed.zero.part import Part


class StoredPart:
    """A part as torch's planners take objects that say themselves what is to be written, or read into them."""

    def __init__(self, part: Part):
        self._shape = torch.Size(part.shape)
        self._blocks = {torch.Size(offsets): values for offsets, values in part.boxes()}

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offsets=offsets, sizes=values.size()),
                    properties=TensorProperties.create_from_tensor(values),
                    size=self._shape,
                ),
            )
            for offsets, values in self._blocks.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets, values.size()) for offsets, values in self._blocks.items()]

    def block(self, index: MetadataIndex) -> Tensor:
        """The values of a block."""
        assert index.offset is not None
        return self._blocks[index.offset]


class PartPlanner(DefaultSavePlanner):
    """torch's, which finds the blocks of parts, too."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        """What is to be written at a place of the checkpoint."""
        found = self.state_dict[index.fqn]
        return found.block(index) if isinstance(found, StoredPart) else super().lookup_object(index)


class PartReader(DefaultLoadPlanner):
    """torch's, which reads into the blocks of parts, too."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Take note of what is to be read into; torch's own puts None in place of what it doesn't know."""
        known = {name: value for name, value in state_dict.items() if not isinstance(value, StoredPart)}
        super().set_up_planner(known, metadata, is_coordinator)
        self.state_dict = {**self.state_dict, **state_dict}

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Where what lies at a place of the checkpoint is read into."""
        found = self.state_dict[index.fqn]
        return found.block(index) if isinstance(found, StoredPart) else super().lookup_tensor(index)
