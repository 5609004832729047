"""The step of orthogonalised momentum for many matrices, whole or sharded.

    X = direction(gradient, momentum)          p <- (1 - lr weight_decay) p - lr scale(rows, columns) O(X)

O needs whole matrices; `danalab.optim.matrix.sharded` computes it for sharded ones.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from danalab.optim.backends.foreach import TensorList, decay
from danalab.optim.core.rule import Rule
from danalab.optim.elementwise.scalars import cautious, coupled_decay_factor, shrink
from danalab.optim.matrix.newton_schulz import (
    coefficients,
    default_dtype,
    matrix_shape,
    orthogonalize,
    orthogonalize_each,
)


def muon_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """Scalars of Muon's step: as `matched_scalars`, but without Nesterov X is the gradient alone."""
    scalars = {**matched_scalars(group, t), "matched_rms": None}
    return scalars if group["nesterov"] else {**scalars, "fresh": 1.0, "weight": 0.0}


def matched_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """Scalars of step t: B <- decay B + gain g, X = fresh g + weight B, then `lr`, `decay_factor` and what O needs."""
    momentum = group["momentum"]
    if group.get("dana_momentum"):
        gain = group["delta"] / (group["delta"] + t)
        rates = {"decay": 1 - gain, "gain": gain, "fresh": 1.0, "weight": float(t) ** (1 - group["kappa"])}
    elif group["nesterov"]:
        rates = {"decay": momentum, "gain": 1.0, "fresh": 1.0, "weight": momentum}
    else:
        rates = {"decay": momentum, "gain": 1.0, "fresh": 0.0, "weight": 1.0}
    return {
        **rates,
        "lr": group["lr"],
        "decay_factor": coupled_decay_factor(group),
        "cautious": cautious(group),
        "matched_rms": group.get("matched_rms"),
        "method": group["ns_method"],
        "steps": group["ns_steps"],
        "dtype": None if group["ns_dtype"] is None else getattr(torch, group["ns_dtype"]),
    }


def update(p: Tensor, g: Tensor, buffer: Tensor, **s: Any) -> tuple[Tensor, Tensor]:
    """One step of one matrix as a pure function, the reference of `update_all`.

    Args:
        p, g, buffer: parameter, gradient, momentum, [rows, ...]; more than two dimensions count as columns.
        s: see `matched_scalars`.
    Returns:
        The new (p, buffer), in the dtype of the buffer.
    """
    p, g = p.to(buffer.dtype), g.to(buffer.dtype)
    buffer = s["decay"] * buffer + s["gain"] * g
    direction = momentum_direction(g, buffer, **s)
    decayed = s["decay_factor"] * p if s["cautious"] is None else shrink(p, direction, s["decay_factor"])
    return decayed - s["lr"] * direction, buffer


def momentum_direction(g: Tensor, buffer: Tensor, **s: Any) -> Tensor:
    """The update direction of `update`, from the new buffer."""
    x = (s["fresh"] * g + s["weight"] * buffer).flatten(1)
    o = orthogonalize(x, s["method"], s["steps"], s["dtype"]).to(buffer.dtype)
    return (scale(x.shape, s["matched_rms"]) * o).view_as(g)


def scale(shape: Any, matched_rms: float | None) -> float:
    """Factor on the orthogonal matrix: by shape (Muon), or for the typical RMS of AdamW (D-Muon)."""
    rows, columns = shape
    return math.sqrt(max(1.0, rows / columns)) if matched_rms is None else matched_rms * math.sqrt(max(rows, columns))


def update_all(
    ps: list[Tensor], gs: list[Tensor], buffers: list[Tensor], *, like: Sequence[Tensor] | None = None, **s: Any
) -> None:
    """`update` on lists, in place; matrices of equal shape in one batch.

    Args:
        ps, gs, buffers: local tensors in the dtype of the buffers.
        like: the parameters whose local shards are `ps`; None: `ps` themselves.
    """
    like = ps if like is None else like
    torch._foreach_mul_(buffers, s["decay"])
    torch._foreach_add_(buffers, gs, alpha=s["gain"])
    chain = coefficients(s["method"], s["steps"])
    dtype = s["dtype"] or default_dtype(ps[0])

    def direction(i: int) -> Tensor:
        x = torch.add(gs[i], buffers[i], alpha=s["weight"]) if s["fresh"] else buffers[i]
        return x.to(dtype)

    def apply(i: int, o: Tensor) -> None:
        rate = s["lr"] * scale(matrix_shape(like[i].shape), s["matched_rms"])
        o = o.reshape(ps[i].shape).to(ps[i].dtype)
        decay(TensorList([ps[i]]), s["decay_factor"], TensorList([o]) if s["cautious"] else None)
        ps[i].add_(o, alpha=-rate)

    whole: list[int] = []
    spread: dict[Any, list[int]] = {}
    for i, p in enumerate(like):
        mesh, placements = getattr(p, "device_mesh", None), getattr(p, "placements", None)
        (whole if mesh is None else spread.setdefault((mesh, placements), [])).append(i)
    shapes = [matrix_shape(ps[i].shape) for i in whole]
    for k, o in orthogonalize_each(shapes, lambda k: direction(whole[k]).flatten(1), chain, dtype, ps[0].device):
        apply(whole[k], o)
    if spread:
        from danalab.optim.matrix import sharded

        for indices in spread.values():
            parts = [direction(i) for i in indices]
            for k, o in sharded.orthogonalize_shards([like[i] for i in indices], parts, chain):
                apply(indices[k], o)


def update_stacks(
    ps: list[Tensor], gs: list[Tensor], buffers: list[Tensor], *, like: Sequence[Tensor] | None = None, **s: Any
) -> None:
    """`update_all` for stacks [matrices, rows, columns]; each matrix is updated separately.

    Args:
        like: the parameters whose local shards are `ps`. A stack sharded along its first dimension needs no
            communication.
    """
    of_each = None if like is None else [matrix for stack in like for matrix in _matrices_of(stack)]
    each = [[matrix for stack in stacks for matrix in stack.unbind(0)] for stacks in (ps, gs, buffers)]
    if each[0]:
        update_all(*each, like=of_each, **s)


def _matrices_of(stack: Tensor) -> Sequence[Tensor]:
    """This rank's matrices of a stack, whole or sharded."""
    if getattr(stack, "device_mesh", None) is None:
        return stack.unbind(0)
    from danalab.optim.matrix import sharded

    return sharded.matrices_of(stack)


def _rule(name: str, scalars: Callable[[Mapping[str, Any], Any], dict[str, Any]]) -> Rule:
    return Rule(name, ("momentum_buffer",), scalars, update, momentum_direction, gains=("gain",), foreach=update_all)


MUON = _rule("muon", muon_scalars)
MATCHED_MUON = _rule("matched_muon", matched_scalars)
