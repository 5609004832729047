"""Sophia with the Gauss-Newton-Bartlett estimate: momentum divided by a diagonal of the Hessian, clipped to a sign.

    m <- beta1 m + (1 - beta1) g
    h <- beta2 h + (1 - beta2) n s^2           every few steps; s the gradient of the mean loss of n sampled labels
    p <- p (1 - lr weight_decay) - lr clip(m / max(rho h, eps), -1, 1)

Labels are sampled from the model's own distribution; n s^2 is then an unbiased estimate of the diagonal of the
Gauss-Newton matrix (Bartlett's identity).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.optim.optimizers.checks import (
    check_changed,
    check_gradients,
    check_numbers,
    check_numbers_of,
    check_parameters,
)
from danalab.optim.settings import POSITIVE, Rate, setting, takes
from danalab.optim.step.state import loss_of
from danalab.optim.values import settings_of


class SophiaSettings(Rate):
    lr: float = 6e-4
    betas: tuple[float, float] = (0.96, 0.99)
    rho: float = setting(default=0.05, help="scale of the curvature; larger values clip less", within=POSITIVE)
    eps: float = setting(default=1e-12, help="least denominator", within=POSITIVE)
    weight_decay: float = 0.0
    hessian_interval: int = setting(default=10, help="steps between estimates of the curvature", within=POSITIVE)
    maximize: bool = False


class SophiaG(torch.optim.Optimizer):
    """Sophia-G. Before each step for which `hessian_is_due()`, estimate the curvature:

        cross_entropy(logits, sample(logits)).backward()      # with labels sampled from softmax(logits)
        optimizer.update_hessian(n_labels)
        optimizer.zero_grad()

    The next `step()` adds the estimate to the average; a skipped step does not. Coordinates of an estimate that are not
    finite are left out. Without any estimate the update is lr times the sign of the momentum.

    Source: Liu et al. 2023, arXiv 2305.14342, algorithms 2 and 3.
    """

    @takes(SophiaSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

    def setup(self, params: Any, settings: dict[str, Any]) -> None:
        """What the constructor does with its arguments."""
        check_numbers_of("sophia", settings_of(type(self), {}), settings)
        _check(settings)
        torch.optim.Optimizer.__init__(self, params, settings)
        check_parameters("sophia", [{"params": [("", p) for p in group["params"]]} for group in self.param_groups])
        self._estimates: dict[Tensor, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {**super().__getstate__(), "_estimates": self._estimates}

    def hessian_is_due(self) -> bool:
        """Whether the next step needs an estimate: the first, and every `hessian_interval` after it."""
        steps = [int(state["step"]) for state in self.state.values() if "step" in state]
        return max(steps, default=0) % self.param_groups[0]["hessian_interval"] == 0

    @torch.no_grad()
    def update_hessian(self, n_labels: float) -> None:
        """Keep `n_labels` times the squared gradients for the next step.

        `n_labels`: number of sampled labels; the gradients are of their mean loss.
        """
        moving = (p for group in self.param_groups for p in group["params"] if p.grad is not None)
        self._estimates = {p: p.grad.square().mul_(n_labels) for p in moving}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Apply the gradients; a parameter without one stays unchanged. Returns the closure's result, or None."""
        check_changed(self, "sophia", self.param_groups, lambda: (known := settings_of(type(self), {}), known), _check)
        loss = loss_of(closure)
        estimates, self._estimates = self._estimates, {}
        for group in self.param_groups:
            check_gradients("sophia", group["params"])
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, estimates.get(p), group)
        return loss

    def _update(self, p: Tensor, g: Tensor, estimate: Tensor | None, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.int64)
            state["exp_avg"] = torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            state["hessian"] = torch.zeros_like(state["exp_avg"])
        state["step"] += 1
        momentum, hessian = state["exp_avg"], state["hessian"]
        beta1, beta2 = group["betas"]
        g = g.to(momentum.dtype)
        momentum.lerp_(-g if group["maximize"] else g, 1 - beta1)
        if estimate is not None:
            estimate = estimate.to(hessian.dtype)
            hessian.lerp_(torch.where(torch.isfinite(estimate), estimate, hessian), 1 - beta2)
        ratio = momentum / (group["rho"] * hessian).clamp_(min=group["eps"])
        p.mul_(1 - group["lr"] * group["weight_decay"]).add_(ratio.clamp_(-1, 1), alpha=-group["lr"])


def _check(settings: Mapping[str, Any]) -> None:
    check_numbers("sophia", settings, declared=SophiaSettings.declared)
