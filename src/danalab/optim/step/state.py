"""State of a parameter: created at construction, moved with its parameter, checked before it is loaded.

Also the dummy step of checkpoint helpers, which creates state and must not change it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from danalab.errors import UserError
from danalab.optim.step.state_formats import REST, has_rest, stored_shapes, stored_tensors


def fill_state(
    state: dict[str, Any], p: Tensor, moments: tuple[str, ...], capturable: bool, state_dtype: str = "float32"
) -> None:
    """Create the state of a parameter that has taken no step: all zero.

    It exists from construction on, so that all ranks agree on the content of a checkpoint, and torch's checkpoint
    helpers need no dummy step to create it.
    """
    state["step"] = torch.zeros((), dtype=torch.int64, device=p.device if capturable else "cpu")
    state.update(stored_tensors(moments, p, state_dtype))


def moment_dtype(p: Tensor) -> torch.dtype:
    """float32 for everything that is not wider: averages with a small gain freeze in 16 bits."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def follow_parameter(
    state: dict[str, Any], p: Tensor, moments: tuple[str, ...], capturable: bool, state_dtype: str
) -> None:
    """Move the state to the parameter's device and dtype: models are often moved after the optimizer was built."""
    if not state:  # a parameter that replaced another one in the group, as when a library shards a model
        fill_state(state, p, moments, capturable, state_dtype)
    if capturable and state["step"].device != p.device:
        state["step"] = state["step"].to(p.device)
    if not has_rest(p, state_dtype):
        state.pop(REST, None)  # the parameter was bfloat16 before
    elif REST not in state:
        state.update(stored_tensors((), p, state_dtype))
    for key, shape in stored_shapes(moments, p, state_dtype).items():
        if key not in state:
            raise UserError(
                f"a parameter's state has no {key}: state_dtype is {state_dtype} now, or another setting of its"
                " group has changed; build the optimizer with it"
            )
        if tuple(state[key].shape) != shape:
            raise UserError(
                f"a parameter has shape {tuple(p.shape)} now, and its state {key} shape {tuple(state[key].shape)}:"
                " p.data was replaced by a tensor of another shape; build the optimizer again"
            )
        dtype = moment_dtype(p) if key in moments else state[key].dtype
        if state[key].device != p.device or state[key].dtype != dtype:
            state[key] = state[key].to(device=p.device, dtype=dtype)


def drop_replaced(state: dict[Any, dict[str, Any]], groups: Iterable[Mapping[str, Any]], owner: str) -> None:
    """Drop the state of parameters that are in no group any more: libraries that shard a model replace them.

    UserError: one of them has taken steps; its moments and its step count would be lost.
    """
    held = [p for group in groups for p in group["params"]]
    if len(state) <= len(held) and all(p in state for p in held):
        return
    kept = set(held)
    gone = [p for p in state if p not in kept]
    if any(float(state[p].get("step", 0)) > 0 for p in gone):
        raise UserError(replaced_too_late(owner))
    for p in gone:
        del state[p]


def replaced_too_late(owner: str) -> str:
    """The message for parameters that were replaced after they had taken steps."""
    return (
        f"{owner}: parameters were replaced after they had taken steps, so their moments and step counts would be lost;"
        " shard or convert the model first, then load the optimizer's state"
    )


def local(tensor: Tensor) -> Tensor:
    """The tensor itself, or the local part of a DTensor (an alias: writing to it writes to the DTensor)."""
    if type(tensor) is Tensor or type(tensor) is Parameter:  # the common case, without a failing attribute look-up
        return tensor
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def local_gradient(g: Tensor, p: Tensor) -> Tensor:
    """The local part of a gradient, in the parameter's placements: tensor parallelism may leave a partial sum."""
    if type(g) is Tensor:
        return g
    placements = getattr(p, "placements", None)
    if placements is not None and getattr(g, "placements", placements) != placements:
        g = g.redistribute(placements=placements)  # pyright: ignore[reportAttributeAccessIssue]
    return local(g)


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """What the closure of a step returns, evaluated with gradients; None without one."""
    with torch.enable_grad():
        return None if closure is None else closure()


_dummy_step: ContextVar[bool | None] = ContextVar("dummy_step", default=None)


@contextmanager
def set_dummy_step(answer: bool) -> Iterator[None]:
    """Within this context `is_dummy_step` returns `answer`: for callers that know more than a rank's own gradients."""
    token = _dummy_step.set(answer)
    try:
        yield
    finally:
        _dummy_step.reset(token)


def is_dummy_step(groups: Iterable[Mapping[str, Any]]) -> bool:
    """Whether all gradients and learning rates are zero, as in the step that checkpoint helpers make to create state.

    Ranks agree: they have the same learning rates, and sharded gradients are summed over them.
    """
    answer = _dummy_step.get()
    if answer is not None:
        return answer
    groups = list(groups)
    if not has_zero_rate(groups):
        return False
    grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    return not any(_any_nonzero(g) for g in grads)


def has_zero_rate(groups: Iterable[Mapping[str, Any]]) -> bool:
    """Whether all learning rates are known to be zero, without waiting for a device."""
    rates = [group.get("lr") for group in groups]
    if any(isinstance(lr, Tensor) and lr.device.type != "cpu" for lr in rates):
        return False
    if not all(isinstance(lr, (int, float, Tensor)) and float(lr) == 0 for lr in rates):
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _any_nonzero(g: Tensor) -> bool:
    if g.layout != torch.strided:
        return True
    total = g.abs().sum()
    # A rank's own shard may be zero where another's is not, and the ranks must agree.
    full = getattr(total, "full_tensor", None)
    return bool((full() if full is not None else total) != 0)
