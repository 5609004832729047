"""The back ends without kernels of ours: eager, foreach, and the pure update compiled by torch.

torch.compile turns the update into kernels with one pass over memory. A list of parameters becomes one graph, whose
writes are `_foreach_copy_`, so that inductor fuses across parameters too. Scalars enter as one tensor: changing them
recompiles nothing. Another list of parameters (shapes, dtypes, strides) has its own graph.
"""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.rules.foreach import TensorList
from danalab.optim.rules.rule import Rule
from danalab.optim.step.backends.rounding import store_rounded
from danalab.optim.step.batch import TensorBatch
from danalab.optim.step.state import moment_dtype


def eager(rule: Rule, batches: list[TensorBatch]) -> None:
    """The pure update, one parameter at a time."""
    for batch in batches:
        each = zip(batch.params, batch.signed_grads(), batch.moments, batch.scalars_each(rule), strict=True)
        for i, (p, g, moments, scalars) in enumerate(each):
            new_p, *new_moments = rule.update(p, g, *moments, **scalars)
            for moment, new in zip(moments, new_moments, strict=True):
                moment.copy_(new)
            store_rounded(p, new_p, batch, i)


def foreach(rule: Rule, batches: list[TensorBatch]) -> None:
    """The update of each batch in place."""
    assert rule.foreach is not None  # `choose_backend` sends no other rule here
    for batch in batches:
        dtype = moment_dtype(batch.params[0])
        wide = TensorList(p.to(dtype) for p in batch.params)  # the parameters themselves where they are wide enough
        grads = TensorList(g.to(dtype) for g in batch.signed_grads())
        rule.foreach(wide, grads, *map(TensorList, zip(*batch.moments, strict=True)), **batch.scalars(rule))
        for i, (p, new_p) in enumerate(zip(batch.params, wide, strict=True)):
            if new_p is not p:
                store_rounded(p, new_p, batch, i)


_graphs: dict[Any, Callable[..., None]] = {}


def compiled(rule: Rule, batches: list[TensorBatch]) -> None:
    """The update of each batch in one compiled graph."""
    from torch._dynamo.exc import BackendCompilerFailed  # not at the top: importing dynamo takes seconds

    for batch in batches:
        random = batch.group["stochastic_rounding"] and batch.params[0].dtype in (torch.bfloat16, torch.float16)
        # Random rounding works on a float32 copy: its noise is a function of each element's position.
        params = [p.float() for p in batch.params] if random else batch.params
        scalars = batch.scalars(rule)
        absent = tuple(name for name, value in scalars.items() if value is None)
        present = {name: value for name, value in scalars.items() if value is not None}
        # [names, 1 or parameters] on the device.
        names, values = tuple(present), batch.on_device(present.values())
        signature = tuple((p.shape, p.stride(), g.dtype, g.stride()) for p, g in zip(params, batch.grads, strict=True))
        first = params[0]
        key = (rule.name, names, absent, values.shape, first.dtype, first.device, batch.skip is None, signature)
        if key not in _graphs:
            _graphs[key] = _graph(rule, names, absent)
        moments = [list(column) for column in zip(*batch.moments, strict=True)]
        try:
            _graphs[key](params, list(batch.signed_grads()), moments, values)
        except BackendCompilerFailed as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"fused=True: torch.compile failed ({reason}); use fused=False") from error
        if random:
            for i, (p, new_p) in enumerate(zip(batch.params, params, strict=True)):
                store_rounded(p, new_p, batch, i)


def _graph(rule: Rule, names: tuple[str, ...], absent: tuple[str, ...]) -> Callable[..., None]:
    update = rule.update

    def step(params: list[Tensor], grads: list[Tensor], moments: list[list[Tensor]], values: Tensor) -> None:
        olds: list[list[Tensor]] = [params, *moments]
        news: list[list[Tensor]] = [[] for _ in olds]
        for i in range(len(params)):
            column = values[:, i if values.shape[1] > 1 else 0]
            scalars = {**dict.fromkeys(absent), **{name: column[k] for k, name in enumerate(names)}}
            for new, result in zip(news, update(params[i], grads[i], *[m[i] for m in moments], **scalars), strict=True):
                new.append(result)
        for old, new in zip(olds, news, strict=True):
            torch._foreach_copy_(old, new)

    # torch.compile stores graphs with the code object and limits their number there: each list gets its own copy.
    copy = types.FunctionType(step.__code__.replace(), step.__globals__, step.__name__, None, step.__closure__)
    return torch.compile(copy, fullgraph=True, dynamic=False)
