"""torch.distributed.checkpoint's planners, extended to `TensorShard`s: each rank writes and reads its own blocks."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex


class SavePlanner(DefaultSavePlanner):
    """Finds the blocks of shards to write."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The values to write for an index of the checkpoint."""
        found = self.state_dict[index.fqn]
        return found.block(index.offset) if hasattr(found, "block") else super().lookup_object(index)


class LoadPlanner(DefaultLoadPlanner):
    """Finds the blocks of shards to read into."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Register the targets; torch's own method would replace shards by None."""
        known = {name: value for name, value in state_dict.items() if isinstance(value, Tensor)}
        super().set_up_planner(known, metadata, is_coordinator)
        self.state_dict = {**self.state_dict, **state_dict}

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """The tensor to read into for an index of the checkpoint."""
        found = self.state_dict[index.fqn]
        return found.block(index.offset) if hasattr(found, "block") else super().lookup_tensor(index)
