"""The fast ways to compute an element-wise rule: kernels.cpp on CPUs, torch.compile on GPUs.

The kernels are compiled once per machine. A parameter that neither can take (float16, gradients of another
dtype or memory order, no compiler) is left to the eager way.
"""

import ctypes
import functools
import logging
import types
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.native_library import NativeLibrary

from .base import Moving, Rule, moments_of, seed_of, working_dtype, write

log = logging.getLogger(__name__)

LIBRARY = NativeLibrary(
    name="optim",
    purpose="the fused optimizer kernels",
    setting="fused=True",
    instead="fused=False",
    sources=(Path(__file__).with_name("kernels.cpp"),),
)
RULES = {"adana": 0, "dana_star": 1, "adamw": 2, "ademamix": 3}
SCALARS = (
    *(
        "lr",
        "decay_factor",
        "eps",
        "gain",
        "gain2",
        "gain3",
        "alpha",
        "gamma3",
        "alpha_offset",
        "clipsnr",
        "t",
        "kappa",
    ),
    *("correction1", "correction2", "weight", "sign", "stochastic"),
)
"""The struct of kernels.cpp, in its order."""
_FORMATS = {
    (torch.float32, torch.float32): 0,
    (torch.float64, torch.float64): 1,
    (torch.bfloat16, torch.float32): 2,
    (torch.float32, torch.bfloat16): 3,
    (torch.bfloat16, torch.bfloat16): 4,
}


def step(rule: Rule, moving: list[Moving]) -> list[Moving]:
    """One step of what a kernel or graph can take; returns the rest, whose steps are not counted yet."""
    native: list[Moving] = []
    compiled: list[Moving] = []
    rest: list[Moving] = []
    for each in moving:
        group, p = each[0], each[1]
        if group.get("fused") is False:
            rest.append(each)
        elif p.is_cpu:
            (native if rule.kernel and has_kernels(group.get("fused")) else rest).append(each)
        else:
            (compiled if p.is_cuda and can_compile(group.get("fused")) else rest).append(each)
    if native:
        rest += step_natively(rule, native)
    if compiled:
        step_compiled(rule, compiled)
    return rest


# ---- kernels.cpp ----


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled kernels, built when they are not in the cache; UserError: as `NativeLibrary.load`."""
    loaded = LIBRARY.load()
    loaded.advance.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    loaded.step.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int)
    loaded.advance.restype = loaded.step.restype = None
    return loaded


@functools.cache
def has_kernels(fused: bool | None) -> bool:
    """Whether the kernels are there; UserError: `fused` demands them, and they are not."""
    try:
        library()
    except UserError as error:
        if fused:
            raise
        log.warning(
            "the fused optimizer step is not available, steps will take several times longer: %s", error
        )
        return False
    return True


def step_natively(rule: Rule, moving: list[Moving]) -> list[Moving]:
    """By the kernel; returns the parameters that it cannot take."""
    names: Any = rule.moments
    kept: list[Moving] = []
    rest: list[Moving] = []
    items = array("q")
    for each in moving:
        group, p, g, state = each
        m = state[names[0]]
        if not p.shape == g.shape == m.shape:
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} has a state of {tuple(m.shape)} and a gradient of "
                f"{tuple(g.shape)}; after a parameter has changed its shape, build the optimizer anew"
            )
        layout = _FORMATS.get((p.dtype, m.dtype))
        if layout is None or g.dtype is not p.dtype or not m.is_cpu:
            rest.append(each)
            continue
        if not (p.is_contiguous() and m.is_contiguous()):
            if not p.stride() == g.stride() == m.stride():
                rest.append(each)
                continue
        elif not g.is_contiguous():
            each = group, p, g.contiguous(), state
        third = state[names[2]].data_ptr() if len(names) > 2 else 0
        v, count = state[names[1]].data_ptr(), state["step"].data_ptr()
        items.extend((p.data_ptr(), each[2].data_ptr(), m.data_ptr(), v, third, count, p.numel(), layout, 0))
        kept.append(each)
    address, width, kernels = items.buffer_info()[0], len(items) // max(len(kept), 1), library()
    counts = array("q", bytes(8 * len(kept)))
    kernels.advance(address, len(kept), counts.buffer_info()[0])
    scalars, rows = array("d"), dict[tuple[int, int], int]()
    for k, ((group, *_), t) in enumerate(zip(kept, counts, strict=True)):
        index = rows.get((id(group), t))
        if index is None:
            index = rows[id(group), t] = len(rows)
            scalars.extend(_row(rule, group, t))
        if index:
            items[width * k + width - 1] = index
    kernels.step(
        RULES[str(rule.kernel)], address, len(kept), scalars.buffer_info()[0], torch.get_num_threads()
    )
    return rest


def _row(rule: Rule, group: dict[str, Any], t: int) -> list[float]:
    """A group's scalars in step t, as kernels.cpp has them."""
    given = {
        **rule.scalars(group, t),
        "t": t,
        "sign": -1 if group.get("maximize") else 1,
        "stochastic": bool(group.get("stochastic_rounding")),
    }
    row = {name: given.get(name) for name in SCALARS}
    row["clipsnr"] = -1 if row["clipsnr"] is None else row["clipsnr"]
    row["eps"] = max(row["eps"] or 0.0, 1e-18)  # dana_star divides by its square
    return [float(value or 0.0) for value in row.values()]


# ---- torch.compile ----


@functools.cache
def can_compile(fused: bool | None) -> bool:
    """Whether torch.compile has Triton, as it must on GPUs; UserError: `fused` demands it, and it has not."""
    try:
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        if fused:
            raise UserError("fused is True; on a GPU it needs Triton, which is not installed") from None
        return False
    return True


def step_compiled(rule: Rule, moving: list[Moving]) -> None:
    """By torch.compile, one graph for the parameters of a group that have taken as many steps.

    Scalars enter as 0-dim tensors on the device: changing them recompiles nothing.
    """
    alike: dict[tuple[int, int, torch.dtype, torch.device], list[Moving]] = {}
    for each in moving:
        group, p, _, state = each
        state["step"] += 1
        alike.setdefault((id(group), int(state["step"]), working_dtype(p), p.device), []).append(each)
    for (_, t, dtype, device), entries in alike.items():
        group = entries[0][0]
        scalars = {name: float(value) for name, value in rule.scalars(group, t).items() if value is not None}
        row = torch.tensor(list(scalars.values()), dtype=dtype).to(device, non_blocking=True)
        grads = [-g if group.get("maximize") else g for _, _, g, _ in entries]
        moments = zip(*(moments_of(rule, state, p) for _, p, _, state in entries), strict=True)
        olds = [[p for _, p, _, _ in entries], *map(list, moments)]
        layout = tuple((x.shape, x.stride(), x.dtype) for x in (*olds[0], *grads, *olds[-1]))
        in_place = not group.get("stochastic_rounding")
        news = _graph(rule.update, tuple(scalars), dtype, in_place, device, layout)(olds, grads, row)
        for i, after in enumerate(news):
            for old, new in zip(olds[i], after, strict=True):
                write(old, new, seed_of(group, t, i))


@functools.cache
def _graph(
    update: Callable[..., tuple[Tensor, ...]],
    names: tuple[str, ...],
    dtype: torch.dtype,
    in_place: bool,
    *_: Any,
) -> Callable[..., list[list[Tensor]]]:
    """A rule's function on lists of tensors of one layout: writes new values, or returns them."""

    def graph(olds: list[list[Tensor]], grads: list[Tensor], row: Tensor) -> list[list[Tensor]]:
        scalars = dict(zip(names, row.unbind(), strict=True))
        wide = ([x.to(dtype) for x in own] for own in zip(*olds, strict=True))
        news = [
            update(p, g.to(dtype), *moments, **scalars) for (p, *moments), g in zip(wide, grads, strict=True)
        ]
        columns = [list(column) for column in zip(*news, strict=True)]
        if not in_place:
            return columns
        for old, new in zip(olds, columns, strict=True):
            torch._foreach_copy_(old, new)
        return []

    # torch keeps graphs with the code object and limits their number there: each layout gets its own.
    own = types.FunctionType(graph.__code__.replace(), graph.__globals__, "graph", None, graph.__closure__)
    return torch.compile(own, fullgraph=True, dynamic=False)
