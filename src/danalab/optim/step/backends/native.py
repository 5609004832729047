"""The native back end for CPUs: a kernel of kernels.cpp updates all parameters in one pass over memory."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from danalab.optim.rules.rule import Rule
from danalab.optim.step.backends.kernel_arguments import NAMES, kernel_scalars, same_order
from danalab.optim.step.backends.kernel_library import library
from danalab.optim.step.backends.rounding import store_rounded
from danalab.optim.step.batch import TensorBatch
from danalab.optim.step.state_formats import FORMATS

# float16 is not among them: it is rare on CPUs, and takes float32 copies.
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}


class _Scalars(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in (*NAMES, "count")]


class _Tensors(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p)
        for name in (
            *("p", "g", "m", "v", "third", "m_rest", "v_rest", "third_rest", "p_rest"),
            *("numel", "columns", "dtype", "format", "batch", "index", "stochastic", "scalars"),
        )
    ]


_MOMENTS = ("m", "v", "third")
_PARTS = ("m", "m_rest", "v", "v_rest", "third", "third_rest")
"""Of moments with fewer bytes, which are stored in two parts each."""


class KernelCall:
    """A call of a rule's kernel for all parameters of some batches. It has raw pointers: keep the tensors alive.

    `params` and `moments` are of all batches, in order, laid out alike; moments in their dtype, or the tensors that
    `danalab.optim.step.state_formats` stores in place of them.
    """

    def __init__(
        self, rule: Rule, batches: list[TensorBatch], params: Sequence[Tensor], moments: Sequence[Sequence[Tensor]]
    ):
        self.rule, self.batches = rule, batches
        self._kernel = getattr(library(), rule.name)
        formats = [FORMATS.index(batch.state_dtype) for batch in batches for _ in batch.params]
        state = [_state(len(rule.moments), *each) for each in zip(moments, formats, strict=True)]
        self._columns = {
            "p": addresses(params),
            **{name: array("Q", [each.get(name, 0) for each in state]) for name in (*_PARTS, "p_rest")},
            "numel": array("q", [p.numel() for p in params]),
            "columns": array("q", [p.shape[-1] if p.ndim else 1 for p in params]),
            "dtype": array("i", [DTYPES[p.dtype] for p in params]),
            "format": array("i", formats),
            "batch": array("i", [number for number, batch in enumerate(batches) for _ in batch.params]),
            "index": array("I", [index for batch in batches for index in batch.indices]),
            "stochastic": array("i", [bool(batch.group["stochastic_rounding"]) for batch in batches]),
        }

    def run(self, grads: array[int]) -> None:
        """Update the parameters in place, given the addresses of their gradients."""
        scalars = (_Scalars * len(self.batches))(*[_scalars(self.rule, batch) for batch in self.batches])
        columns = {name: column.buffer_info()[0] for name, column in self._columns.items()}
        tensors = _Tensors(g=grads.buffer_info()[0], scalars=ctypes.addressof(scalars), **columns)
        self._kernel(ctypes.byref(tensors), len(grads), torch.get_num_threads())


def fused(rule: Rule, batches: list[TensorBatch]) -> None:
    """The update of all batches in one call."""
    params: list[Tensor] = []
    grads: list[Tensor] = []
    copies: list[tuple[Tensor, Tensor, TensorBatch, int]] = []  # parameter, its copy, batch and index in the batch
    for batch in batches:
        for i, (p, g, moments) in enumerate(zip(batch.params, batch.grads, batch.moments, strict=True)):
            m = moments[0]
            if batch.state_dtype == "float32" and (p.dtype not in DTYPES or not same_order(p, g, m)):
                # In the layout and dtype of the moments: the kernel takes each block of memory as one line of elements.
                wide = torch.empty_like(m).copy_(p)
                copies.append((p, wide, batch, i))
                p, g = wide, torch.empty_like(m).copy_(g)
            params.append(p)
            grads.append(g)
    moments = [each for batch in batches for each in batch.moments]
    KernelCall(rule, batches, params, moments).run(addresses(grads))
    for p, wide, batch, i in copies:
        store_rounded(p, wide, batch, i)


def reads_formats(batch: TensorBatch) -> bool:
    """Whether the kernel takes all parameters of a batch with moments of fewer bytes as they are."""
    return all(
        p.dtype in (torch.float32, torch.bfloat16)
        and p.dtype == g.dtype
        and all(map(Tensor.is_contiguous, (p, g, *state.values())))
        for p, g, state in zip(batch.params, batch.grads, batch.states, strict=True)
    )


def addresses(tensors: Sequence[Tensor]) -> array[int]:
    """Address of each tensor's first element."""
    return array("Q", map(Tensor.data_ptr, tensors))


def _state(count: int, stored: Sequence[Tensor], number: int) -> dict[str, int]:
    """Column of `_Tensors` -> address, of `count` moments in the format of this number.

    A bfloat16 parameter has its further bits behind moments with fewer bytes.
    """
    names = (*_PARTS[: 2 * count], "p_rest") if number else _MOMENTS[:count]
    return dict(zip(names, map(Tensor.data_ptr, stored), strict=False))


def _scalars(rule: Rule, batch: TensorBatch) -> _Scalars:
    """The kernel's scalars, and the step count."""
    values = {**kernel_scalars(rule, batch.group, batch.scalars(rule)), "count": batch.t}
    return _Scalars(**{name: float(value) for name, value in values.items()})
