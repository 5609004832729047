"""A step of the native back end that repeats the last one: with many small tensors, preparing a call costs most."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from danalab.optim.backends.kernel_library import library
from danalab.optim.backends.native import KernelCall, addresses
from danalab.optim.core.batch import Batch
from danalab.optim.core.rule import Rule

FLAGS = itemgetter("fused", "foreach", "capturable", "stochastic_rounding")

_gradient, _layout, _dtype = attrgetter("grad"), attrgetter("layout"), attrgetter("dtype")


class StepPlan:
    """The kernel call of a step whose parameters, states and groups are still those of the last step.

    Args:
        batches: those of the last step, all of `rule`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, rule: Rule, batches: list[Batch]):
        groups = optimizer.param_groups
        self._groups = [(group, FLAGS(group), list(group["params"])) for group in groups]
        self._entries = list(optimizer.state.values())
        self._params = [p for batch in batches for p in batch.params]
        moving = set(self._params)
        self._idle = [p for _, _, params in self._groups for p in params if p not in moving]
        own = [optimizer.state[p] for p in self._params]
        self._steps = addresses([entry["step"] for entry in own])
        self._tensors = [(entry, name) for name in ("step", *rule.moments) for entry in own]
        self._call = KernelCall(rule, batches, self._params, [each for batch in batches for each in batch.moments])
        self._dtypes = [p.dtype for p in self._params]
        self._places = self._where()
        for batch in batches:
            batch.grads = []  # they are new in every step: don't keep their memory

    @staticmethod
    def is_possible(optimizer: torch.optim.Optimizer, batches: Iterable[Batch]) -> bool:
        """Whether all tensors of the batches can be handed to a kernel as they are."""
        for batch in batches:
            for p, g, moments in zip(batch.params, batch.grads, batch.moments, strict=True):
                plain = type(p) in (Parameter, Tensor) and p in optimizer.state and p.dtype != torch.float16
                if not plain or not all(map(Tensor.is_contiguous, (p, g, *moments))):
                    return False
                if optimizer.state[p]["step"].dtype != torch.int64:
                    return False
        return True

    def repeat(self, optimizer: torch.optim.Optimizer) -> bool:
        """Make the step; False, with nothing done, where something has changed."""
        groups = optimizer.param_groups
        if len(groups) != len(self._groups) or len(optimizer.state) != len(self._entries):
            return False
        for group, (own, flags, params) in zip(groups, self._groups, strict=True):
            if group is not own or FLAGS(group) != flags or not group["peak_lr"] or len(group["params"]) != len(params):
                return False
            if not all(map(is_, group["params"], params)):
                return False
        if not all(map(is_, optimizer.state.values(), self._entries)) or any(p.grad is not None for p in self._idle):
            return False
        grads: list[Any] = list(map(_gradient, self._params))
        if set(map(type, grads)) != {Tensor} or set(map(_layout, grads)) != {torch.strided}:
            return False
        if list(map(_dtype, grads)) != self._dtypes or not all(map(Tensor.is_contiguous, grads)):
            return False
        if self._where() != self._places:
            return False
        counts = array("q", [-1] * len(self._call.batches))
        steps, batch_of, t = (a.buffer_info()[0] for a in (self._steps, self._call.batch_of, counts))
        if not library().advance(steps, batch_of, len(grads), t):
            return False
        for batch, count in zip(self._call.batches, counts, strict=True):
            batch.t = count
        self._call.run(addresses(grads))
        return True

    def _where(self) -> array[int]:
        return addresses([*self._params, *(entry[name] for entry, name in self._tensors)])
