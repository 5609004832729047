"""State as it is without sharding: one entry a parameter. What ranks own is gathered into it, or its part, and cut
from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from danalab.optim.core.groups import hyper
from danalab.optim.distributed.dtensor.adapter import DTensorAdapter
from danalab.optim.distributed.dtensor.nested import Outline, leaves, map_leaves
from danalab.optim.distributed.zero.layout import Piece
from danalab.optim.distributed.zero.part import Part

States = Mapping[Piece, tuple[Mapping[str, Any], bool]]


def own_states(inner: torch.optim.Optimizer, owned: Mapping[Piece, Tensor]) -> States:
    """(state, whether the parameter still waits for its first step) of this rank's pieces; complete."""
    if isinstance(inner, DTensorAdapter):
        saved = inner.state_dict()
        ids = [id(p) for group in inner.param_groups for p in group["params"]]
        states = {tensor: saved["state"].get(place, {}) for place, tensor in enumerate(ids)}
        waiting = {
            id(group["params"][k])
            for group, saved_group in zip(inner.param_groups, saved["param_groups"], strict=True)
            for k in saved_group["unstepped"]
        }
        return {piece: (states[id(tensor)], id(tensor) in waiting) for piece, tensor in owned.items()}
    library = getattr(inner, "inner", None)
    if isinstance(library, DTensorAdapter):
        library.state_dict()  # which completes the state of what is wrapped around it
    return {piece: (inner.state.get(tensor, {}), False) for piece, tensor in owned.items()}


def gather_states(
    own: States, shapes: Sequence[torch.Size], group: Any, rank: int, ranks: int
) -> tuple[dict[int, dict[str, Any]], set[int]]:
    """State of all parameters on every rank, from the state of the pieces that each owns. Collective.

    Args:
        own: of this rank's pieces; tensors shaped like a slice are parts of one shaped like the parameter.
        shapes: of the parameters.
    Returns:
        parameter index -> state, tensors in host memory; and the parameters that wait for their first step.
    """

    def whole(value: Tensor | None, form: Outline, owner: int) -> Tensor:
        return _from_owner(value, (form.shape, form.dtype), owner, group, rank, ranks)

    def put(into: dict[str, Any], key: str, value: Tensor, piece: Piece) -> None:
        if key not in into:
            into[key] = torch.empty(shapes[piece.parameter], dtype=value.dtype)
        into[key].view(-1)[piece.start : piece.stop] = value

    return merge_shards(own, shapes, group, rank, ranks, whole, put)


def part_states(
    own: States, shapes: Sequence[torch.Size], group: Any, rank: int, ranks: int
) -> tuple[dict[int, dict[str, Any]], set[int]]:
    """As `gather_states`, with a `Part` for each tensor of one dimension or more: no rank gets what it doesn't own."""

    def part(value: Tensor | None, form: Outline, _: int) -> Part:
        return Part(form.shape, form.dtype, 0, value)

    def put(into: dict[str, Any], key: str, found: Part, piece: Piece) -> None:
        if found.values is not None or key not in into:
            into[key] = Part(tuple(shapes[piece.parameter]), found.dtype, piece.start, found.values)

    return merge_shards(own, shapes, group, rank, ranks, part, put)


def merge_shards(
    own: States,
    shapes: Sequence[torch.Size],
    group: Any,
    rank: int,
    ranks: int,
    fetch: Callable[[Tensor | None, Outline, int], Any],
    put: Callable[[dict[str, Any], str, Any, Piece], None],
) -> tuple[dict[int, dict[str, Any]], set[int]]:
    """(parameter index -> state, parameters that wait for their first step), from the outlines of all ranks' pieces.

    Args:
        fetch: (the owner's tensor, None elsewhere; its form; the owner) -> what stands in its place.
        put: (state of a parameter, key, what came of a slice, its piece): add it.
    """
    outline = [
        (piece, map_leaves(dict(state), lambda leaf: Outline(leaf) if _is_large(leaf) else _on_host(leaf)), waits)
        for piece, (state, waits) in own.items()
    ]
    tensors = iter([leaf.detach() for state, _ in own.values() for _, leaf in leaves(dict(state)) if _is_large(leaf)])
    outlines: list[Any] = [outline]
    if ranks > 1:
        outlines = [None] * ranks
        dist.all_gather_object(outlines, outline, group=group)
    found: dict[int, dict[str, Any]] = {}
    waiting: set[int] = set()
    for owner, pieces in enumerate(outlines):
        mine: Iterator[Tensor] | None = tensors if owner == rank else None
        for piece, state, waits in pieces:
            if waits:
                waiting.add(piece.parameter)

            def resolve(leaf: Any, owner: int = owner, mine: Iterator[Tensor] | None = mine) -> Any:
                if not isinstance(leaf, Outline):
                    return leaf  # a clock, say: alike for all pieces of a parameter
                return fetch(None if mine is None else next(mine), leaf, owner)

            into = found.setdefault(piece.parameter, {})
            is_cut = piece.numel != shapes[piece.parameter].numel()
            for key, value in map_leaves(state, resolve).items():
                if is_cut and getattr(value, "shape", None) == (piece.numel,):
                    put(into, key, value, piece)
                else:
                    into[key] = value
    return {i: state for i, state in sorted(found.items()) if state}, waiting


def cut_state_dict(
    saved: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    owned: Mapping[Piece, Tensor],
    shapes: Sequence[torch.Size],
) -> dict[str, Any]:
    """The part of a whole state_dict that concerns the pieces of this rank.

    Args:
        saved: of the optimizer without sharding; a `Part` in place of a tensor is this rank's own.
        groups: those of the optimizer of the pieces.
        shapes: of the parameters.
    """
    piece_of = {id(tensor): piece for piece, tensor in owned.items()}
    keys = [key for group in saved["param_groups"] for key in group["params"]]
    waiting: set[int] = set()
    start = 0
    for group in saved["param_groups"]:
        waiting |= {start + k for k in group.get("unstepped", ())}
        start += len(group["params"])
    states: dict[int, Any] = {}
    found: list[dict[str, Any]] = []
    count = 0
    for saved_group, group in zip(saved["param_groups"], groups, strict=True):
        ids = list(range(count, count + len(group["params"])))
        count += len(ids)
        pieces = [piece_of[id(tensor)] for tensor in group["params"]]
        for own, piece in zip(ids, pieces, strict=True):
            state = saved["state"].get(keys[piece.parameter])
            if state is not None:
                states[own] = cut_state(state, piece, shapes[piece.parameter])
        cut = {**hyper(saved_group), "params": ids}
        if "unstepped" in saved_group:
            cut["unstepped"] = [k for k, piece in enumerate(pieces) if piece.parameter in waiting]
        found.append(cut)
    return {"state": states, "param_groups": found}


def cut_state(state: Mapping[str, Any], piece: Piece, shape: torch.Size) -> dict[str, Any]:
    """A piece's state, from that of its whole parameter; a `Part` is the piece's already."""
    state = map_leaves(dict(state), lambda leaf: leaf.values if isinstance(leaf, Part) else leaf)
    if piece.numel == shape.numel():
        return dict(state)
    return {
        key: value.reshape(-1)[piece.start : piece.stop]
        if isinstance(value, Tensor) and value.shape == shape
        else value
        for key, value in state.items()
    }


def _is_large(value: Any) -> bool:
    """Whether a value is worth a message of its own."""
    return isinstance(value, Tensor) and value.ndim > 0


def _on_host(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


def _from_owner(value: Tensor | None, form: Any, owner: int, group: Any, rank: int, ranks: int) -> Tensor:
    """A tensor of the owner's, on every rank, in host memory."""
    if ranks == 1:
        assert value is not None
        return value.cpu().clone()
    device = _collective_device(group)
    buffer = torch.empty(form[0], dtype=form[1], device=device) if value is None else value.to(device).contiguous()
    dist.broadcast(buffer, src=dist.get_global_rank(group, owner) if group is not None else owner, group=group)
    return buffer.cpu().clone() if value is not None else buffer.cpu()


def _collective_device(group: Any) -> torch.device:
    """Where the group's collectives work: the GPU of this process for NCCL, else host memory."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
