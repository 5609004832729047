"""SNOO: an outer Nesterov step around any optimizer, every k of its steps.

    x      the weights that the inner optimizer moves          X, b    outer weights and their momentum
    after every k-th inner step:
        d  = X - x                    pseudo-gradient
        b <- mu b + d
        X <- X - lr_outer (d + mu b)
        x <- X

mu = 0 is Lookahead. Source: Kallusky et al. 2025, arXiv 2510.15830 (SNOO); Zhang et al. 2019, arXiv 1907.08610.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.core.checks import is_number
from danalab.optim.core.state import local
from danalab.optim.wrappers.base import Stepped, Wrapper


class SNOO(Wrapper):
    """Any optimizer, with a Nesterov step along the displacement of every k of its steps.

        optimizer = SNOO(DanaStarMK4(model.parameters(), lr=1e-3), k=20)

    The outer state of a parameter is `outer`, `outer_momentum` and `outer_step`; `outer_step` modulo k is the position
    within the period.

    Args:
        inner: the optimizer that makes the steps.
        k: inner steps of a period.
        lr_outer: learning rate of the outer step; 1, with `mu` 0, leaves the inner optimizer unchanged.
        mu: the outer momentum's rate.
    Raises:
        UserError: a setting out of range, or `inner` is no optimizer.
    Source: Kallusky et al. 2025, arXiv 2510.15830.
    """

    keys: ClassVar = {"k": "outer_k", "lr_outer": "outer_lr", "mu": "outer_mu"}
    moments = ("outer", "outer_momentum")
    count = "outer_step"

    def __init__(self, inner: torch.optim.Optimizer, *, k: int = 20, lr_outer: float = 0.5, mu: float = 0.9):
        super().__init__(inner, {"outer_k": k, "outer_lr": lr_outer, "outer_mu": mu})

    def check(self, settings: Mapping[str, Any]) -> None:
        k, lr, mu = (settings[key] for key in self.keys.values())
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise UserError(f"SNOO: k is {k!r}; it must be a whole number of steps, at least 1")
        if not is_number(lr) or not (math.isfinite(lr) and lr > 0):
            raise UserError(f"SNOO: lr_outer is {lr!r}; it must be finite and positive")
        if not is_number(mu) or not 0 <= mu < 1:
            raise UserError(f"SNOO: mu is {mu!r}; it must be in [0, 1)")

    def after(self, stepped: Stepped) -> None:
        due: dict[tuple[Any, ...], list[Tensor]] = {}
        for group, p in stepped:
            if int(self._outer[p]["outer_step"]) % group["outer_k"] == 0:
                key = (group["outer_lr"], group["outer_mu"], p.device, p.dtype)
                due.setdefault(key, []).append(p)
        for (lr, mu, *_), params in due.items():
            states = [self.outer_state(p) for p in params]
            outers, momenta = ([local(state[name]) for state in states] for name in self.moments)
            outer_step([local(p) for p in params], outers, momenta, lr=lr, mu=mu)


def outer_step(weights: list[Tensor], outers: list[Tensor], momenta: list[Tensor], *, lr: float, mu: float) -> None:
    """SGD with Nesterov momentum on the outer weights, along X - x, in place; then x is set to X.

    Args:
        weights: x, any floating dtype, all alike.
        outers, momenta: X and b, in the dtype of the moments.
    """
    wide = [x.to(outer.dtype) for x, outer in zip(weights, outers, strict=True)]
    d = torch._foreach_sub(outers, wide)
    torch._foreach_mul_(momenta, mu)
    torch._foreach_add_(momenta, d)
    torch._foreach_add_(d, momenta, alpha=mu)
    torch._foreach_add_(outers, d, alpha=-lr)
    for x, outer in zip(weights, outers, strict=True):
        x.copy_(outer)
