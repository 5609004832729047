"""Copies of a checkpoint's tensors in host memory, so that training continues while they are written.

Each rank copies its own shards and a share of replicated tensors: no byte is copied or written twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.optim.distributed.shards import SavedTensor, TensorShard, owners
from danalab.train.parallel.world import World


class HostCopies:
    """Host copies of named tensors; their memory is reused by the next checkpoint."""

    def __init__(self, world: World):
        self._world = world
        # Reused, because newly allocated memory of this size would have to be paged in each time.
        self._copies: dict[str, Tensor] = {}
        self._specs: dict[str, Any] = {}
        self._shards: dict[str, TensorShard] = {}

    def take(self, tensors: Mapping[str, SavedTensor]) -> None:
        """Copy this rank's share of `tensors`; returns when it is copied."""
        share: dict[str, Any] = share_of(tensors, self._world)
        self._copies = {name: self._copies[name] for name in share if name in self._copies}
        self._specs = {name: value._spec for name, value in share.items() if _is_sharded(value)}
        self._shards = {name: value.with_values(None) for name, value in share.items() if not isinstance(value, Tensor)}
        on_gpu = False
        with torch.no_grad():
            for name, value in share.items():
                source: Tensor = value.to_local() if hasattr(value, "to_local") else value
                copy = self._copies.get(name)
                if copy is None or copy.shape != source.shape or copy.dtype != source.dtype:
                    copy = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=source.is_cuda)
                    self._copies[name] = copy
                copy.copy_(source, non_blocking=source.is_cuda)
                on_gpu |= source.is_cuda
        if on_gpu:
            torch.cuda.current_stream().synchronize()

    @property
    def tensors(self) -> dict[str, SavedTensor]:
        """The copies, sharded as the originals are."""
        found: dict[str, SavedTensor] = {
            name: self._shards[name].with_values(copy) if name in self._shards else copy
            for name, copy in self._copies.items()
        }
        if not self._specs:
            return found
        from torch.distributed.tensor import DTensor

        # Not DTensor.from_local, which would move the copy to the device of the mesh.
        sharded = {name: DTensor(self._copies[name], spec, requires_grad=False) for name, spec in self._specs.items()}
        return found | sharded


def share_of(tensors: Mapping[str, SavedTensor], world: World) -> dict[str, SavedTensor]:
    """The tensors that this rank writes: its shards, and an equal share of replicated tensors.

    All ranks call it with the same names and shapes; each tensor is in the share of exactly one rank.
    """
    if world.size == 1:
        return dict(tensors)
    alike: dict[int, list[tuple[str, int]]] = {}
    mine = {name for name, value in tensors.items() if not isinstance(value, Tensor) and value.values is not None}
    others = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
    for name, value in others.items():
        copies, place = _copies(value, world)
        alike.setdefault(copies, []).append((name, place))
    for copies, entries in alike.items():
        costs = [float(others[name].numel() * others[name].element_size()) for name, _ in entries]
        for (name, place), owner in zip(entries, owners(costs, copies), strict=True):
            if owner == place:
                mine.add(name)
    return {name: value for name, value in tensors.items() if name in mine}


def _copies(value: Tensor, world: World) -> tuple[int, int]:
    """(number of ranks that hold the same part of a tensor, index of this rank among them)."""
    if not _is_sharded(value):
        return world.size, world.rank
    mesh: Any = value.device_mesh  # pyright: ignore[reportAttributeAccessIssue]
    at = mesh.get_coordinate()
    if mesh.size() != world.size or at is None:
        return 1, 0  # copies outside this mesh: torch deduplicates them
    copies, place = 1, 0
    for dim, placement in enumerate(value.placements):  # pyright: ignore[reportAttributeAccessIssue]
        if placement.is_replicate():
            place = place * mesh.size(dim) + at[dim]
            copies *= mesh.size(dim)
    return copies, place


def _is_sharded(value: Any) -> bool:
    return getattr(value, "device_mesh", None) is not None
