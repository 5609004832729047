"""Construction of `DistributedMuonAdamW`: groups, settings, costs of parameters, the inner optimizer."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from danalab.errors import UserError, nearest
from danalab.optim.core.groups import called, require_some
from danalab.optim.distributed import require_supported
from danalab.optim.distributed.dtensor.adapter import DTensorAdapter
from danalab.optim.distributed.dtensor.build import build_adapted, parameter_groups
from danalab.optim.distributed.zero.layout import Bucket, Content, Piece
from danalab.optim.matrix.newton_schulz import flops, matrix_shape
from danalab.optim.registry import groups_of
from danalab.optim.registry.spec import OptimizerSpec

OWNER = "DistributedMuonAdamW"


def groups_for(spec: OptimizerSpec, model_or_params: Any) -> list[dict[str, Any]]:
    """Groups whose "params" are (name, parameter), the name "" where there is none."""
    given = groups_of(spec, model_or_params) if isinstance(model_or_params, nn.Module) else model_or_params
    groups = parameter_groups(spec, OWNER, given)
    require_some(OWNER, groups)
    return groups


def content(spec: OptimizerSpec, group: Mapping[str, Any], name: str, p: Tensor) -> Content:
    """The layout's view of a parameter."""
    if getattr(p, "device_mesh", None) is not None:
        raise UserError(f"{OWNER}: {called(name, p)} is a DTensor already; use '{spec.name}' itself with FSDP2")
    matrix = group["use_muon"] if hasattr(spec.build, "split_group") else not spec.elementwise
    # Memory traffic makes an element as expensive as about 100 multiplications.
    cost = 100.0 * p.numel()
    if matrix and p.ndim > 1:
        stacked = group.get("kind") == "experts"
        cost += 5 * (len(p) * flops(*matrix_shape(p.shape[1:])) if stacked else flops(*matrix_shape(p.shape)))
    return Content(p.numel(), cost, not matrix and p.is_contiguous(), (p.dtype, p.device))


def check_settings(spec: OptimizerSpec, settings: Mapping[str, Any]) -> None:
    """Refuse an optimizer that does not support ZeRO, and unknown settings."""
    require_supported(spec, "zero")
    if settings.get("state_dtype") == "8bit":
        raise UserError(f"{OWNER}: state_dtype 8bit has scales for blocks of rows, which ZeRO's slices cut; use bf16+8")
    for setting in settings:
        if setting not in spec.settings:
            hint = nearest(setting, spec.settings)
            raise UserError(
                f"optimizer '{spec.name}' has no setting '{setting}'{hint}; it has: {', '.join(spec.settings)}"
            )


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
    """The optimizer of a rank's pieces.

    Args:
        params: all parameters, which pieces refer to by index.
        groups: of (name, parameter) pairs; a group without owned pieces stays, empty.
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
    inner = build_adapted(spec, own, lr, settings)
    if isinstance(inner, DTensorAdapter):
        inner.name_parameters(names)
    return inner
