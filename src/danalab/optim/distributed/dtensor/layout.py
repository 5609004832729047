"""Arithmetic of DTensor placements, and collectives over all ranks of a mesh."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def is_whole(p: Any) -> bool:
    """Whether every rank of a DTensor's mesh holds the whole tensor."""
    mesh = p.device_mesh
    return all(placement.is_replicate() or mesh.size(d) == 1 for d, placement in enumerate(p.placements))


def cut(whole: Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> Tensor:
    """This rank's shard of a whole tensor under `placements`; a view, without communication.

    Mesh dimensions shard in order, but strided ones (FSDP2 over tensor parallelism) after those to their right, whose
    shards they divide.
    """
    plain = [d for d, placement in enumerate(placements) if not _is_strided(placement)]
    strided = [d for d, placement in reversed(list(enumerate(placements))) if _is_strided(placement)]
    part = whole
    for d in (*plain, *strided):
        placement = placements[d]
        if placement.is_replicate():
            continue
        dim, ranks, rank = placement.dim, mesh.size(d), mesh.get_local_rank(d)
        length = part.shape[dim]
        chunk = -(-length // ranks)
        start = min(rank * chunk, length)
        part = part.narrow(dim, start, min(chunk, length - start))
    return part


def _is_strided(placement: Any) -> bool:
    return type(placement).__name__ == "_StridedShard"


def spread_like(local: Tensor, p: Any) -> DTensor:
    """A DTensor from this rank's shard, with the placements of `p`."""
    return DTensor.from_local(
        local, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=_dense(p.shape)
    )


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * max(length, 1))
    return tuple(reversed(strides)) if len(shape) else ()


def coordinate(mesh: DeviceMesh, place: int) -> tuple[int, ...]:
    """Coordinates of a rank, from its index in the flattened mesh."""
    found = []
    for size in reversed(mesh.mesh.shape):
        found.append(place % size)
        place //= size
    return tuple(reversed(found))


def own_place(mesh: DeviceMesh) -> int:
    """This rank's index in the flattened mesh."""
    place = 0
    for d, size in enumerate(mesh.mesh.shape):
        place = place * size + mesh.get_local_rank(d)
    return place


def broadcast_(tensor: Tensor, mesh: DeviceMesh, owner: int) -> Tensor:
    """Broadcast the owner's values to all ranks of a mesh, in place; `owner` is an index in the flattened mesh.

    Dimension by dimension, in the mesh's own process groups: first along the last dimension, among the ranks that share
    the owner's other coordinates; finally along the first dimension, among all ranks.
    """
    there = coordinate(mesh, owner)
    here = coordinate(mesh, own_place(mesh))
    for d in reversed(range(mesh.ndim)):
        if here[:d] == there[:d]:
            group = mesh.get_group(d)
            dist.broadcast(tensor, src=dist.get_global_rank(group, there[d]), group=group)
    return tensor


def gather_objects(thing: Any, mesh: DeviceMesh) -> list[Any]:
    """The object of each rank of a mesh, in the order of the flattened mesh, on all ranks. Collective."""
    things = [thing]
    for d in reversed(range(mesh.ndim)):
        gathered: list[Any] = [None] * mesh.size(d)
        dist.all_gather_object(gathered, things, group=mesh.get_group(d))
        things = [item for part in gathered for item in part]
    return things


def whole_of(value: Tensor) -> Tensor:
    """The whole tensor on this rank. Collective for a sharded DTensor."""
    full = getattr(value, "full_tensor", None)
    return torch.as_tensor(full() if full is not None else value).detach()
