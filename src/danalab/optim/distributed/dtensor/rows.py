"""Exchange of row shards: gathers many tensors at their owners by one all-to-all, and scatters them by another."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh


class RowExchange:
    """Exchange between shards along the first dimension and owners; all ranks build it with the same arguments.

    Args:
        shapes: of the whole tensors.
        owners: rank of the mesh that owns each.
        mesh: of one dimension.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], owners: Sequence[int], mesh: DeviceMesh):
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
        found: dict[int, list[Tensor]] = {i: [] for i in self.mine}
        for _ in self._ranks:
            for i in self.mine:
                found[i].append(next(pieces))
        return {i: torch.cat(each).view(self._shapes[i]) for i, each in found.items()}

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
