"""Euclidean norms of tensors that may be sharded over ranks."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


def whole_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of each tensor, [tensors], on all ranks. Collective for DTensors: one all-reduce for each sharding.

    Replicas count once.
    """
    local = torch.stack(torch._foreach_norm([t.to_local() if isinstance(t, DTensor) else t for t in tensors]))
    kinds: dict[Any, list[int]] = {}
    for i, t in enumerate(tensors):
        if isinstance(t, DTensor):
            dims = tuple(dim for dim, placement in enumerate(t.placements) if not placement.is_replicate())
            kinds.setdefault((t.device_mesh, dims), []).append(i)
    if not kinds:
        return local
    squares = local.double().square()  # float64: float32 would overflow where the norm itself does not
    for (mesh, dims), indices in kinds.items():
        chosen = squares[indices]
        for dim in dims:
            dist.all_reduce(chosen, group=mesh.get_group(dim))
        squares[indices] = chosen
    return squares.sqrt().to(local.dtype)


def whole_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all `tensors` together, 0-dim, on all ranks."""
    return torch.linalg.vector_norm(whole_norms(tensors))
