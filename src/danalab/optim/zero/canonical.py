"""State as it is without sharding: one entry a parameter, whole. What ranks own is gathered into it and cut from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from danalab.optim.zero.layout import Piece


def gather_states(
    own: Mapping[Piece, Mapping[str, Any]], shapes: Sequence[torch.Size], group: Any, rank: int, ranks: int
) -> dict[int, dict[str, Any]]:
    """State of all parameters on every rank, from the state of the pieces that each owns. Collective.

    Args:
        own: state of this rank's pieces; tensors shaped like a slice are parts of one shaped like the parameter.
        shapes: of the parameters.
    Returns:
        parameter index -> state, tensors in host memory.
    """
    tensors = [(piece, key, value) for piece, state in own.items() for key, value in state.items()]
    outline = [
        (piece, key, (tuple(value.shape), value.dtype), None)
        if _is_large(value)
        else (piece, key, None, _on_host(value))
        for piece, key, value in tensors
    ]
    outlines: list[Any] = [outline]
    if ranks > 1:
        outlines = [None] * ranks
        dist.all_gather_object(outlines, outline, group=group)
    found: dict[int, dict[str, Any]] = {}
    for owner, entries in enumerate(outlines):
        for n, (piece, key, form, plain) in enumerate(entries):
            state = found.setdefault(piece.parameter, {})
            if form is None:
                state[key] = plain  # a clock, say: alike for all pieces of a parameter
                continue
            value = tensors[n][2].detach() if owner == rank else None
            value = _from_owner(value, form, owner, group, rank, ranks)
            whole = shapes[piece.parameter]
            if piece.numel == whole.numel() or form[0] != (piece.numel,):
                state[key] = value
            else:
                if key not in state:
                    state[key] = torch.empty(whole, dtype=form[1])
                state[key].view(-1)[piece.start : piece.stop] = value
    return dict(sorted(found.items()))


def cut_state(state: Mapping[str, Any], piece: Piece, shape: torch.Size) -> dict[str, Any]:
    """A piece's state, from that of its whole parameter."""
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
