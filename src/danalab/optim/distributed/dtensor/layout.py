"""Arithmetic of DTensor placements, collectives over all ranks of a mesh, and the exchange of row shards."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_whole(p: Any) -> bool:
    """Whether every rank of a DTensor's mesh holds the whole tensor."""
    mesh = p.device_mesh
    return all(placement.is_replicate() or mesh.size(d) == 1 for d, placement in enumerate(p.placements))


def cut(whole: Tensor, mesh: Any, placements: Sequence[Any]) -> Tensor:
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


def spread_like(local: Tensor, p: Any) -> Any:
    """A DTensor from this rank's shard, with the placements of `p`."""
    from torch.distributed.tensor import DTensor  # not at the top: it takes long to import

    dense = torch.empty(p.shape, device="meta").stride()
    return DTensor.from_local(local, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=dense)


def coordinate(mesh: Any, place: int) -> tuple[int, ...]:
    """Coordinates of a rank, from its index in the flattened mesh."""
    shape = tuple(mesh.mesh.shape)
    return tuple(place // math.prod(shape[d + 1 :]) % shape[d] for d in range(len(shape)))


def own_place(mesh: Any) -> int:
    """This rank's index in the flattened mesh."""
    shape = tuple(mesh.mesh.shape)
    return sum(mesh.get_local_rank(d) * math.prod(shape[d + 1 :]) for d in range(mesh.ndim))


def broadcast_(tensor: Tensor, mesh: Any, owner: int) -> Tensor:
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


def gather_objects(thing: Any, mesh: Any) -> list[Any]:
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


class RowExchange:
    """Exchange between shards along the first dimension and owners; all ranks build it with the same arguments.

    `shapes` are of the whole tensors, `owners` a rank for each on the 1-D `mesh`.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], owners: Sequence[int], mesh: Any):
        self._group, ranks, self._rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
        self._shapes = [tuple(shape) for shape in shapes]
        self._columns = [math.prod(shape[1:]) for shape in self._shapes]
        self._rows = [[rows_of(shape[0], r, ranks) for r in range(ranks)] for shape in self._shapes]
        self._ranks = range(ranks)
        belongs = [[i for i, owner in enumerate(owners) if owner == r] for r in self._ranks]
        self.mine = belongs[self._rank]
        """Indices of the tensors that this rank owns."""
        self._order = [i for part in belongs for i in part]
        self._out = [sum(self._size(i, self._rank) for i in part) for part in belongs]
        self._in = [sum(self._size(i, r) for i in self.mine) for r in self._ranks]

    def _size(self, i: int, rank: int) -> int:
        return self._rows[i][rank] * self._columns[i]

    def to_owners(self, parts: Sequence[Tensor]) -> dict[int, Tensor]:
        """Index -> whole tensor that this rank owns, from each rank's rows; all tensors have one dtype."""
        sent = torch.cat([parts[i].reshape(-1) for i in self._order])
        received = sent.new_empty(sum(self._in))
        dist.all_to_all_single(received, sent, self._in, self._out, group=self._group)
        pieces = iter(received.split([self._size(i, r) for r in self._ranks for i in self.mine]))
        parts_of: dict[int, list[Tensor]] = {i: [] for i in self.mine}
        for _ in self._ranks:
            for i in self.mine:
                parts_of[i].append(next(pieces))
        return {i: torch.cat(each).view(self._shapes[i]) for i, each in parts_of.items()}

    def from_owners(self, wholes: dict[int, Tensor], like: Tensor) -> list[Tensor]:
        """This rank's rows of all tensors, from the owners' whole tensors."""
        rows = [wholes[i].reshape(self._shapes[i][0], -1).split(self._rows[i]) for i in self.mine]
        pieces = [each[r].reshape(-1) for r in self._ranks for each in rows]
        sent = torch.cat(pieces) if pieces else like.new_empty(0)
        received = sent.new_empty(sum(self._out))
        dist.all_to_all_single(received, sent, self._out, self._in, group=self._group)
        parts = dict(zip(self._order, received.split([self._size(i, self._rank) for i in self._order]), strict=True))
        return [parts[i].view(self._rows[i][self._rank], *self._shapes[i][1:]) for i in range(len(self._shapes))]


def rows_of(rows: int, rank: int, ranks: int) -> int:
    """Number of rows of a rank under `Shard(0)`: equal chunks, the last ones shorter or empty."""
    chunk = -(-rows // ranks)
    return min(max(rows - rank * chunk, 0), chunk)
