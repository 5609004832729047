"""SODA: a pull to the initial weights that falls as 1 / k, in place of weight decay, around any optimizer.

    W <- W + (W0 - W) / (k + offset) + u          offset = 2; k = 0, 1, ... counts the steps, u is the inner step

The pull does not depend on the learning rate. Source: Pethick et al. 2026, arXiv 2605.11172.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.core.checks import is_number
from danalab.optim.core.state import local
from danalab.optim.wrappers.base import Stepped, Wrapper


class SODA(Wrapper):
    """Any optimizer, with weights that are pulled to their initial values by 1 / (k + offset) in its step k = 0, 1, ...

        optimizer = SODA(Muon(model, lr=0.02))

    The inner step must not depend on the weights themselves, only on gradients: its weight decay has to be 0. The outer
    state of a parameter is `initial`, its value at its first gradient, and `soda_step`.

    Args:
        inner: the optimizer that makes the steps, without weight decay.
        offset: a larger one makes the first pulls weaker.
    Raises:
        UserError: `inner` is no optimizer or has weight decay, or the offset is below 1.
    Source: Pethick et al. 2026, arXiv 2605.11172.
    """

    keys: ClassVar = {"offset": "soda_offset"}
    moments = ("initial",)
    count = "soda_step"

    def __init__(self, inner: torch.optim.Optimizer, *, offset: float = 2.0):
        super().__init__(inner, {"soda_offset": offset})

    def check(self, settings: Mapping[str, Any]) -> None:
        offset = settings["soda_offset"]
        if not is_number(offset) or not 1 <= offset < float("inf"):
            raise UserError(f"SODA: offset is {offset!r}; it must be finite and at least 1")
        if settings.get("weight_decay"):
            raise UserError(
                f"SODA: weight_decay is {settings['weight_decay']:g}; it must be 0: the pull to the initial weights"
                " takes its place"
            )

    def before(self, stepped: Stepped) -> None:
        alike: dict[tuple[Any, ...], list[Tensor]] = {}
        for group, p in stepped:
            pull = 1 / (int(self._outer[p]["soda_step"]) + group["soda_offset"])
            alike.setdefault((pull, p.device, p.dtype), []).append(p)
        for (pull, *_), params in alike.items():
            weights = [local(p) for p in params]
            initial = [local(self.outer_state(p)["initial"]) for p in params]
            wide = [w.to(w0.dtype) for w, w0 in zip(weights, initial, strict=True)]
            pulled = torch._foreach_lerp(wide, initial, pull)
            for w, new in zip(weights, pulled, strict=True):
                w.copy_(new)
