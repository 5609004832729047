"""Orthogonalising matrices that are spread over ranks (FSDP2, tensor parallelism), shards in and shards out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from danalab.optim.balance import owners
from danalab.optim.matrix_step import flat
from danalab.optim.newton_schulz import Coefficients, flops, orthogonalize_each


def orthogonalize_shards(
    like: Sequence[Any], local: Sequence[Tensor], chain: Sequence[Coefficients]
) -> Iterator[tuple[int, Tensor]]:
    """Orthogonalise matrices of which each rank has a part; all ranks of the mesh call it with the same matrices.

    Args:
        like: DTensor parameters, all on one mesh with the same placements: how each matrix is spread.
        local: this rank's part of each matrix, in the dtype of the computation.
        chain: coefficients of each step.
    Yields:
        index, and this rank's part of the result.
    """
    mesh, placements = like[0].device_mesh, like[0].placements
    if mesh.ndim == 1 and type(placements[0]) is Shard and placements[0].dim == 0:
        yield from _by_owners(like, local, chain)
    else:
        yield from _by_all(like, local, chain)


def _by_owners(
    like: Sequence[Any], local: Sequence[Tensor], chain: Sequence[Coefficients]
) -> Iterator[tuple[int, Tensor]]:
    """Rows to the owner of each matrix, the owner's work, rows back: two all-to-alls, and every matrix is done once."""
    mesh = like[0].device_mesh
    group, ranks, rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
    shapes = [flat(p.shape) for p in like]
    owner = owners([flops(*shape) for shape in shapes], ranks)
    rows = [[_rows_of(shape[0], r, ranks) for r in range(ranks)] for shape in shapes]
    belongs = [[i for i in range(len(like)) if owner[i] == r] for r in range(ranks)]
    mine = belongs[rank]
    outgoing = [sum(rows[i][rank] * shapes[i][1] for i in belongs[r]) for r in range(ranks)]
    incoming = [sum(rows[i][r] * shapes[i][1] for i in mine) for r in range(ranks)]

    sent = torch.cat([local[i].reshape(-1) for r in range(ranks) for i in belongs[r]])
    received = sent.new_empty(sum(incoming))
    dist.all_to_all_single(received, sent, incoming, outgoing, group=group)
    parts = _views(received, [(r, i, rows[i][r], shapes[i][1]) for r in range(ranks) for i in mine])
    fetch = [torch.cat([parts[r, i] for r in range(ranks)]) for i in mine]
    work = orthogonalize_each([shapes[i] for i in mine], lambda k: fetch[k], chain, sent.dtype, sent.device)
    for k, o in work:
        for part, o_part in zip([parts[r, mine[k]] for r in range(ranks)], o.split(rows[mine[k]]), strict=True):
            part.copy_(o_part)
    dist.all_to_all_single(sent, received, outgoing, incoming, group=group)
    back = _views(sent, [(r, i, rows[i][rank], shapes[i][1]) for r in range(ranks) for i in belongs[r]])
    for (_, i), part in back.items():
        yield i, part


def _by_all(
    like: Sequence[Any], local: Sequence[Tensor], chain: Sequence[Coefficients]
) -> Iterator[tuple[int, Tensor]]:
    """Any sharding: every rank gathers a few matrices at a time, computes them, and keeps its part."""
    mesh, placements = like[0].device_mesh, like[0].placements

    def whole(i: int) -> Tensor:
        p = like[i]
        spread = DTensor.from_local(local[i], mesh, placements, run_check=False, shape=p.shape, stride=p.stride())
        return spread.full_tensor().flatten(1)

    everywhere = [Replicate()] * mesh.ndim
    shapes = [flat(p.shape) for p in like]
    for i, o in orthogonalize_each(shapes, whole, chain, local[0].dtype, local[0].device):
        o = o.reshape(like[i].shape).contiguous()
        yield i, DTensor.from_local(o, mesh, everywhere, run_check=False).redistribute(mesh, placements).to_local()


def _views(flat_buffer: Tensor, pieces: list[tuple[int, int, int, int]]) -> dict[tuple[int, int], Tensor]:
    """(rank, matrix) -> its [rows, columns] in a buffer where these follow one another."""
    found = {}
    start = 0
    for r, i, rows, columns in pieces:
        found[r, i] = flat_buffer[start : start + rows * columns].view(rows, columns)
        start += rows * columns
    return found


def _rows_of(rows: int, rank: int, ranks: int) -> int:
    """Rows that `Shard(0)` gives a rank: equal chunks, the last ones shorter or empty."""
    chunk = -(-rows // ranks)
    return min(max(rows - rank * chunk, 0), chunk)
