"""Attention of whole rows on CPUs by the compiled attention.cpp, in float32, forward and backward.

With AVX2 torch's own takes 1.4 to 1.9 times as long, with documents up to 2.5 times (`bench/attention.py`)."""

import ctypes
import functools
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd.function import once_differentiable

from danalab import native_library
from danalab.errors import UserError
from danalab.models.layers.precision import uses_onednn
from danalab.native_library import NativeLibrary

log = logging.getLogger(__name__)

SHORTEST = 129
"""Tokens of a row from which on it is used; short rows cost little."""

LIBRARY = NativeLibrary(
    name="attention",
    purpose="the attention kernel",
    setting="the attention kernel",
    instead="torch's",
    sources=(
        Path(__file__).with_name("attention.cpp"),
        *(Path(native_library.__file__).with_name(name) for name in ("threads.h", "vectors.h")),
    ),
)


class _Rows(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "row", "head"))]


class _Task(ctypes.Structure):
    _fields_ = [
        *((name, _Rows) for name in ("q", "k", "v", "y", "dy", "dq", "dk", "dv")),
        ("sums", ctypes.c_void_p), ("starts", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "length", "features")),
    ]  # fmt: skip


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled kernel; None, with a line, where it cannot be built."""
    try:
        return LIBRARY.load()
    except UserError as error:
        log.info("attention by torch: %s", error)
        return None


def usable(q_BNLH: Tensor, k_BKLH: Tensor, v_BKLH: Tensor, starts_BL: Tensor | None = None) -> bool:
    """Whether to use `attend_rows`: long rows in float32 on a CPU; not for what is compiled, or transformed by
    torch.func, nor for whole rows where oneDNN's products are faster."""
    return (
        q_BNLH.shape[2] >= SHORTEST
        and all(type(x) is Tensor and x.is_cpu and x.dtype == torch.float32 for x in (q_BNLH, k_BKLH, v_BKLH))
        and not torch.compiler.is_compiling()
        and peek_interpreter_stack() is None
        and not (starts_BL is None and uses_onednn(q_BNLH))
        and _library() is not None
    )


def attend_rows(q_BNLH: Tensor, k_BKLH: Tensor, v_BKLH: Tensor, starts_BL: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(H)) v over the keys from `starts` (int64; None: the first) to the query's, [B, N, L, H].

    K divides N: heads of queries share keys and values. The result depends neither on the number of threads nor on the
    other rows. Differentiable once (RuntimeError for a second derivative).
    """
    return _Attend.apply(q_BNLH, k_BKLH, v_BKLH, starts_BL)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in given[:3])
        starts = None if given[3] is None else given[3].contiguous()
        y, sums = _like(q), q.new_empty(q.shape[:3])
        _call("forward", sums, starts, q=q, k=k, v=v, y=y)
        ctx.save_for_backward(q, k, v, y, sums, starts)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, y, sums, starts = ctx.saved_tensors
        (dy,) = (x if x.stride(-1) == 1 else x.contiguous() for x in slopes)
        dq, dk, dv = _like(q), _like(k), _like(v)
        _call("backward", sums, starts, q=q, k=k, v=v, y=y, dy=dy, dq=dq, dk=dk, dv=dv)
        return dq, dk, dv, None


def _like(x_BNLH: Tensor) -> Tensor:
    """Memory of this shape in the order B, L, N, H, in which the maps before and after have it."""
    batch, heads, length, features = x_BNLH.shape
    return x_BNLH.new_empty(batch, length, heads, features).transpose(1, 2)


def _call(direction: str, sums: Tensor, starts: Tensor | None, **tensors: Tensor) -> None:
    (batch, heads, length, features), kv_heads = tensors["q"].shape, tensors["k"].shape[1]
    task = _Task(
        sums=sums.data_ptr(), starts=None if starts is None else starts.data_ptr(),
        batch=batch, heads=heads, kv_heads=kv_heads, length=length, features=features,
        **{name: _Rows(x.data_ptr(), x.stride(0), x.stride(2), x.stride(1)) for name, x in tensors.items()},
    )  # fmt: skip
    getattr(_library(), direction)(ctypes.byref(task), torch.get_num_threads())
