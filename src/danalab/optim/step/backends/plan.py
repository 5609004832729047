"""A step of a kernel that repeats the last one: with many small tensors, preparing a call costs most.

Step counts are on the host, where a C++ function advances them, or with `capturable` on the device.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from danalab.optim.rules.rule import Rule
from danalab.optim.step.backends.kernel_library import library
from danalab.optim.step.backends.native import addresses
from danalab.optim.step.batch import TensorBatch, advance, advance_ages, clock

FLAGS = ("fused", "foreach", "capturable", "stochastic_rounding", "cautious_decay", "state_dtype", "age", "buffers")
"""Settings that decide the call; not every optimizer has the last ones."""

_gradient, _layout, _dtype, _shape = map(attrgetter, ("grad", "layout", "dtype", "shape"))


class StepPlan:
    """The kernel call of a step whose parameters, states and groups are still those of the last step's `batches`.

    `call`: (rule, batches, parameters, moments) -> an object whose `run(addresses of gradients)` makes the step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, rule: Rule, batches: list[TensorBatch], call: Any):
        groups = optimizer.param_groups
        self._groups = [(group, list(map(group.get, FLAGS)), list(group["params"])) for group in groups]
        self._entries = list(optimizer.state.values())
        self._params = [p for batch in batches for p in batch.params]
        moving = set(self._params)
        self._idle = [p for _, _, params in self._groups for p in params if p not in moving]
        own = [optimizer.state[p] for p in self._params]
        self._batches = batches
        self._batch_of = array("i", [number for number, batch in enumerate(batches) for _ in batch.params])
        self._steps = [entry["step"] for entry in own]
        self._step_addresses = addresses(self._steps)
        self._on_device = bool(batches[0].group["capturable"])
        self._tensors = [(entry, key) for entry in own for key, value in entry.items() if isinstance(value, Tensor)]
        self._call = call(rule, batches, self._params, [each for batch in batches for each in batch.moments])
        self._dtypes = [p.dtype for p in self._params]
        self._shapes = [p.shape for p in self._params]
        self._places = self._where()
        for batch in batches:
            batch.grads = []  # they are new in every step: don't keep their memory

    @staticmethod
    def is_possible(optimizer: torch.optim.Optimizer, batches: Iterable[TensorBatch]) -> bool:
        """Whether all tensors of the batches can be handed to a kernel as they are."""
        batches = list(batches)
        if len({bool(batch.group["capturable"]) for batch in batches}) != 1:
            return False
        for batch in batches:
            for p, g, moments in zip(batch.params, batch.grads, batch.moments, strict=True):
                plain = type(p) in (Parameter, Tensor) and p in optimizer.state and p.dtype != torch.float16
                if not plain or not all(map(Tensor.is_contiguous, (p, g, *moments))):
                    return False
                if optimizer.state[p]["step"].dtype != torch.int64:
                    return False
        return True

    def repeat(self, optimizer: torch.optim.Optimizer, skip: Tensor | None = None) -> bool:
        """Make the step; False, with nothing done, where something has changed. `skip`: see `TensorBatch`."""
        if skip is not None and not self._on_device:
            return False
        groups = optimizer.param_groups
        if len(groups) != len(self._groups) or len(optimizer.state) != len(self._entries):
            return False
        for group, (own, flags, params) in zip(groups, self._groups, strict=True):
            if group is not own or list(map(group.get, FLAGS)) != flags or not group["peak_lr"]:
                return False
            if len(group["params"]) != len(params) or not all(map(is_, group["params"], params)):
                return False
        if not all(map(is_, optimizer.state.values(), self._entries)) or any(p.grad is not None for p in self._idle):
            return False
        grads: list[Any] = list(map(_gradient, self._params))
        if set(map(type, grads)) != {Tensor} or set(map(_layout, grads)) != {torch.strided}:
            return False
        for tensors in (grads, self._params):
            if list(map(_shape, tensors)) != self._shapes or not all(map(Tensor.is_contiguous, tensors)):
                return False
        if list(map(_dtype, grads)) != self._dtypes or any(map(Tensor.is_neg, grads)):
            return False
        of_grads = addresses(grads)
        if 0 in of_grads and any(map(Tensor._is_zerotensor, grads)):  # an empty tensor has no address either
            return False
        if self._where() != self._places:
            return False
        if not (self._advance_on_device(skip) if self._on_device else self._advance_on_host()):
            return False
        advance_ages(self._batches)
        self._call.run(of_grads)
        return True

    def _advance_on_host(self) -> bool:
        counts = array("q", [-1] * len(self._batches))
        steps, batch_of, t = (a.buffer_info()[0] for a in (self._step_addresses, self._batch_of, counts))
        if not library().advance(steps, batch_of, len(self._params), t):
            return False
        for batch, count in zip(self._batches, counts, strict=True):
            batch.t = count
        return True

    def _advance_on_device(self, skip: Tensor | None) -> bool:
        advance(self._steps, skip)
        first = 0
        for batch in self._batches:
            batch.t, batch.skip = clock(self._steps[first : first + len(batch.params)], skip), skip
            first += len(batch.params)
        return True

    def _where(self) -> array[int]:
        return addresses([*self._params, *(entry[name] for entry, name in self._tensors)])
