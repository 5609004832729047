"""Which place (`danalab.optim.distributed.dtensor.places`) each parameter gets, and which of them travel together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from danalab.optim.distributed.balance import owners
from danalab.optim.distributed.dtensor.places import LocalShard, OwnedFull, Plain
from danalab.optim.distributed.modes import require_supported
from danalab.optim.registry.spec import OptimizerSpec


def place_parameters(spec: OptimizerSpec, params: Sequence[Any]) -> list[Plain]:
    """A place for each parameter; ownership is balanced over the ranks of each mesh.

    Raises:
        UserError: sharded parameters that the optimizer cannot be exact on.
    """
    found: list[Plain | None] = [None] * len(params)
    owned: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        if getattr(p, "device_mesh", None) is None:
            found[i] = Plain(p)
            continue
        from danalab.optim.distributed.dtensor.layout import is_whole

        require_supported(spec, "fsdp" if p.device_mesh.ndim == 1 else "fsdp+tp")
        if spec.elementwise or spec.sums_over_ranks or is_whole(p):
            found[i] = LocalShard(p)
        else:
            owned.setdefault(p.device_mesh, []).append(i)
    for mesh, indices in owned.items():
        costs = [_cost(params[i].shape) for i in indices]
        for i, owner in zip(indices, owners(costs, mesh.size()), strict=True):
            found[i] = OwnedFull(params[i], owner)
    return [place for place in found if place is not None]


def by_rows(places: Sequence[Plain]) -> tuple[list[list[OwnedFull]], list[Plain]]:
    """OwnedFull parameters that can travel together, in lists; and all other places."""
    alike: dict[Any, list[OwnedFull]] = {}
    others: list[Plain] = []
    for place in places:
        if isinstance(place, OwnedFull) and place.is_cut_by_rows:
            g = place.p.grad
            alike.setdefault((place.mesh, place.p.dtype, None if g is None else g.dtype), []).append(place)
        else:
            others.append(place)
    return list(alike.values()), others


def _cost(shape: Sequence[int]) -> float:
    """About what updating a whole parameter costs: memory, and products of a matrix with preconditioners."""
    numel = 1.0
    for length in shape:
        numel *= length
    return numel * (100 + (sum(shape) if len(shape) > 1 else 0))
