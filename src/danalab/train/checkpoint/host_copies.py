"""The moment of a checkpoint, kept in host memory while training goes on.

Every rank copies its own shards, and of what several ranks hold alike only its share: no byte is copied or written
twice, however many replicas there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.optim.balance import owners
from danalab.train.parallel.world import World


class HostCopies:
    """Host copies of named tensors; memory is kept from one checkpoint to the next."""

    def __init__(self, world: World):
        self._world = world
        # Kept from save to save: fresh memory of this size would be paged in anew each time.
        self._copies: dict[str, Tensor] = {}
        self._specs: dict[str, Any] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy this rank's share of `tensors` as they are now; returns when they are copied."""
        share: dict[str, Any] = share_of(tensors, self._world)
        self._copies = {name: self._copies[name] for name in share if name in self._copies}
        self._specs = {name: value._spec for name, value in share.items() if _is_sharded(value)}
        on_gpu = False
        with torch.no_grad():
            for name, value in share.items():
                source: Tensor = value.to_local() if _is_sharded(value) else value
                copy = self._copies.get(name)
                if copy is None or copy.shape != source.shape or copy.dtype != source.dtype:
                    copy = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=source.is_cuda)
                    self._copies[name] = copy
                copy.copy_(source, non_blocking=source.is_cuda)
                on_gpu |= source.is_cuda
        if on_gpu:
            torch.cuda.current_stream().synchronize()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The copies, sharded as the originals are."""
        if not self._specs:
            return dict(self._copies)
        from torch.distributed.tensor import DTensor

        # Not DTensor.from_local, which would move the copy back to where its mesh computes.
        return {
            name: DTensor(copy, self._specs[name], requires_grad=False) if name in self._specs else copy
            for name, copy in self._copies.items()
        }


def share_of(tensors: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """Those of `tensors` that this rank writes: its shards, and an even part of what is replicated.

    All ranks call it with the same names and shapes, and together they have everything once.
    """
    if world.size == 1:
        return dict(tensors)
    alike: dict[int, list[tuple[str, int]]] = {}
    for name, value in tensors.items():
        copies, place = _copies(value, world)
        alike.setdefault(copies, []).append((name, place))
    mine = set()
    for copies, entries in alike.items():
        costs = [float(tensors[name].numel() * tensors[name].element_size()) for name, _ in entries]
        for (name, place), owner in zip(entries, owners(costs, copies), strict=True):
            if owner == place:
                mine.add(name)
    return {name: value for name, value in tensors.items() if name in mine}


def _copies(value: Tensor, world: World) -> tuple[int, int]:
    """(how many ranks hold the same part of a tensor, which of them this one is)."""
    if not _is_sharded(value):
        return world.size, world.rank
    mesh: Any = value.device_mesh  # pyright: ignore[reportAttributeAccessIssue]
    at = mesh.get_coordinate()
    if mesh.size() != world.size or at is None:
        return 1, 0  # copies that this mesh does not show: torch finds and drops them
    copies, place = 1, 0
    for dim, placement in enumerate(value.placements):  # pyright: ignore[reportAttributeAccessIssue]
        if placement.is_replicate():
            place = place * mesh.size(dim) + at[dim]
            copies *= mesh.size(dim)
    return copies, place


def _is_sharded(value: Tensor) -> bool:
    return getattr(value, "device_mesh", None) is not None
