"""Orthogonalisation of DTensors, of which every rank has a part (FSDP2, tensor parallelism).

Where the rows are cut, each matrix has an owner, which gets the rows of all ranks, orthogonalises, and sends
them back; so the ranks share the work. Where columns are cut, too, every rank gathers the matrix and keeps
its part.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from .newton_schulz import Coefficients, fast_dtype, orthogonalize_each


def orthogonalize_sharded(xs: Sequence[Any], chain: Sequence[Coefficients]) -> list[Any]:
    """O(x) of DTensors [rows, columns], or of each matrix of a stack of them, sharded as x.

    Collective: all ranks call it with the same matrices.
    """
    out: list[Any] = [*xs]
    alike: dict[Any, list[int]] = {}
    for i, x in enumerate(xs):
        alike.setdefault((x.device_mesh, x.placements, x.ndim), []).append(i)
    for (mesh, placements, ndim), indices in alike.items():
        cut = [
            d for d, placement in enumerate(placements) if not placement.is_replicate() and mesh.size(d) > 1
        ]
        by_rows = all(placements[d].dim == 0 for d in cut)
        local = [xs[i].to_local().to(fast_dtype(xs[i])) for i in indices]
        if not cut or (by_rows and ndim > 2):  # a rank has whole matrices
            parts = [orthogonalize_whole(x, chain) for x in local]
        elif by_rows and len(cut) == 1 and type(placements[cut[0]]) is Shard:
            shapes = [tuple(xs[i].shape) for i in indices]
            parts = _by_owners(local, shapes, chain, mesh.get_group(cut[0]), mesh.get_local_rank(cut[0]))
        else:
            parts = [part_of(orthogonalize_whole(xs[i].full_tensor(), chain), xs[i]) for i in indices]
        for i, part in zip(indices, parts, strict=True):
            out[i] = like(part, xs[i])
    return out


def orthogonalize_whole(x: Tensor, chain: Sequence[Coefficients]) -> Tensor:
    """O(x) of a matrix, or of each in a stack."""
    os = orthogonalize_each(list(x) if x.ndim > 2 else [x], chain)
    return torch.stack(os) if x.ndim > 2 and os else os[0] if os else x


def part_of(whole: Tensor, x: Any) -> Tensor:
    """This rank's part of a tensor that every rank has, sharded as x."""
    everywhere = [Replicate()] * x.device_mesh.ndim
    replicated = DTensor.from_local(whole.contiguous(), x.device_mesh, everywhere, run_check=False)
    return replicated.redistribute(placements=x.placements).to_local()


def like(part: Tensor, x: Any) -> Any:
    """A DTensor from this rank's part, sharded as x."""
    spread = {"run_check": False, "shape": x.shape, "stride": x.stride()}
    return DTensor.from_local(part, x.device_mesh, x.placements, **spread)


def _by_owners(
    local: Sequence[Tensor],
    shapes: Sequence[tuple[int, int]],
    chain: Sequence[Coefficients],
    group: Any,
    rank: int,
) -> list[Tensor]:
    """Each rank's rows of all matrices -> the same rows of O. Two all-to-alls."""
    ranks = dist.get_world_size(group)
    rows = [[rows_of(shape[0], r, ranks) for r in range(ranks)] for shape in shapes]
    owner = owners([float(min(shape) * shape[0] * shape[1]) for shape in shapes], ranks)
    order = sorted(range(len(shapes)), key=lambda i: owner[i])
    mine = [i for i in order if owner[i] == rank]
    sizes = [[rows[i][r] * shapes[i][1] for r in range(ranks)] for i in range(len(shapes))]
    to_owners = [sum(sizes[i][rank] for i in order if owner[i] == r) for r in range(ranks)]
    from_ranks = [sum(sizes[i][r] for i in mine) for r in range(ranks)]

    received = exchanged(torch.cat([local[i].reshape(-1) for i in order]), to_owners, from_ranks, group)
    pieces = iter(received.split([sizes[i][r] for r in range(ranks) for i in mine]))
    parts = [[next(pieces) for _ in mine] for _ in range(ranks)]
    wholes = [torch.cat([part[k] for part in parts]).view(shapes[i]) for k, i in enumerate(mine)]
    each = [o.split(rows[i]) for o, i in zip(orthogonalize_each(wholes, chain), mine, strict=True)]
    sent = [split[r].reshape(-1) for r in range(ranks) for split in each]
    received = exchanged(torch.cat(sent) if sent else received.new_empty(0), from_ranks, to_owners, group)
    own = dict(zip(order, received.split([sizes[i][rank] for i in order]), strict=True))
    return [own[i].view(-1, shapes[i][1]) for i in range(len(shapes))]


def exchanged(sent: Tensor, out: list[int], into: list[int], group: Any) -> Tensor:
    """All-to-all of consecutive parts of these sizes, one for each rank."""
    received = sent.new_empty(sum(into))
    dist.all_to_all_single(received, sent, into, out, group=group)
    return received


def rows_of(rows: int, rank: int, ranks: int) -> int:
    """Number of rows of a rank under `Shard(0)`: equal chunks, the last ones shorter or empty."""
    chunk = -(-rows // ranks)
    return min(max(rows - rank * chunk, 0), chunk)


def zeros_along(p: Any, dim: int, dtype: torch.dtype) -> Any:
    """Zeros in the shape of p but 1 along dim, sharded as p where it has more."""
    dim %= p.ndim
    shapes = [torch.Size((*each.shape[:dim], 1, *each.shape[dim + 1 :])) for each in (p, p.to_local())]
    placements = [Replicate() if getattr(each, "dim", None) == dim else each for each in p.placements]
    zeros, stride = (
        p.to_local().new_zeros(shapes[1], dtype=dtype),
        torch.empty(shapes[0], device="meta").stride(),
    )
    spread = {"run_check": False, "shape": shapes[0], "stride": stride}
    return DTensor.from_local(zeros, p.device_mesh, placements, **spread)


def owners(costs: Sequence[float], ranks: int) -> list[int]:
    """Rank that owns each item: heaviest items first, each to the rank with the smallest load so far.

    The largest load exceeds the mean by less than one item; equal costs are assigned in turn. Deterministic.
    """
    loads = [0.0] * ranks
    chosen = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min(range(ranks), key=lambda r: (loads[r], r))
        chosen[i] = rank
        loads[rank] += costs[i]
    return chosen
