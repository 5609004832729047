"""What a rank owns, and the optimizer of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from danalab.optim.core.optimizer import RuleOptimizer
from danalab.optim.distributed.dtensor.adapter import DTensorAdapter
from danalab.optim.distributed.dtensor.build import adapted
from danalab.optim.distributed.zero.layout import Bucket, Piece
from danalab.optim.registry.spec import OptimizerSpec


def own_pieces(buckets: Sequence[Bucket], params: Sequence[Tensor], rank: int) -> dict[Piece, Tensor]:
    """A rank's pieces, each a view of its parameter."""
    found = {}
    for piece in (piece for bucket in buckets for piece in bucket.pieces if piece.owner == rank):
        p = params[piece.parameter].detach()
        found[piece] = p if piece.numel == p.numel() else p.view(-1)[piece.start : piece.stop]
    return found


def optimizer_of(
    owned: Mapping[Piece, Tensor],
    params: Sequence[Tensor],
    spec: OptimizerSpec,
    groups: Sequence[Mapping[str, Any]],
    lr: float,
    settings: dict[str, Any],
) -> Any:
    """The optimizer proper, on what a rank owns.

    Args:
        params: all parameters, by whose numbers pieces go.
        groups: of the (name, parameter) pairs of all parameters; a group of which nothing is owned stays, empty.
    """
    place = {id(p): i for i, p in enumerate(params)}
    pieces: dict[int, list[Tensor]] = {}
    for piece, tensor in sorted(owned.items(), key=lambda item: (item[0].parameter, item[0].start)):
        pieces.setdefault(piece.parameter, []).append(tensor)
    own, names = [], []
    for group in groups:
        pairs = [(name, tensor) for name, p in group["params"] for tensor in pieces.get(place[id(p)], [])]
        own.append({**group, "params": [tensor for _, tensor in pairs]})
        names += [name for name, _ in pairs]
    inner = adapted(spec, own, lr, settings)
    if isinstance(inner, DTensorAdapter):
        inner.name_parameters(names)
    if isinstance(inner, RuleOptimizer):
        # Ways to compute differ in the last bit, so the size that chooses one is that of the whole.
        inner._numel = sum(p.numel() for p in params)
    return inner
