"""What others have written: torch's optimizers, and those of the library pytorch-optimizer (extra `baselines`), thin.

Defaults are the authors', or the usual ones for language models where the library's differ. Weight decay is never part
of the gradient: p <- p (1 - lr weight_decay), but for SGD. Sophia is our own: no library has its curvature.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import MissingExtra

from .base import Group, Optimizer, State, zeros_like


def adamw(
    params: Any,
    lr: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    fused: bool | None = None,
    maximize: bool = False,
) -> torch.optim.AdamW:
    """Adam with decoupled weight decay (torch's; Loshchilov and Hutter 2019, arXiv 1711.05101).

    Args:
        params: parameters or groups.
        lr: learning rate.
        betas: rates of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
        amsgrad: divide by the largest second moment so far.
        fused: torch's kernel; none = where all parameters are dense.
        maximize: ascend in place of descending.
    """
    params = list(params)
    if fused is None:  # torch's kernel for CPUs takes every tensor for a dense one
        fused = all(is_dense(p) for p in tensors_of(params))
    return torch.optim.AdamW(params, lr, betas, eps, weight_decay, amsgrad, fused=fused or None, maximize=maximize)


def sgd(
    params: Any,
    lr: float = 1e-3,
    *,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> torch.optim.SGD:
    """Stochastic gradient descent with momentum (torch's).

    Args:
        params: parameters or groups.
        lr: learning rate.
        momentum: rate of the momentum, a sum of gradients.
        dampening: a new gradient is weighted by 1 - dampening.
        nesterov: look ahead by one step of momentum.
        weight_decay: weight decay, added to the gradient: also part of the momentum.
        maximize: ascend in place of descending.
    """
    return torch.optim.SGD(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)


def adafactor(
    params: Any,
    lr: float = 0.01,
    *,
    beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    d: float = 1.0,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> torch.optim.Adafactor:
    """Adam with a factored second moment and steps relative to the weights (torch's; arXiv 1804.04235).

    Args:
        params: parameters or groups.
        lr: learning rate, in units of each tensor's root mean square.
        beta2_decay: the second moment's rate is 1 - t^this.
        eps: added to squared gradients (none = of the dtype); least root mean square of weights.
        d: largest root mean square of an update.
        weight_decay: weight decay, times the learning rate.
        maximize: ascend in place of descending.
    """
    return torch.optim.Adafactor(params, lr, beta2_decay, eps, d, weight_decay, maximize=maximize)


def soap(
    params: Any,
    lr: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.95, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    precondition_frequency: int = 10,
    max_precondition_dim: int = 10_000,
) -> torch.optim.Optimizer:
    """Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024, arXiv 2409.11321).

    Its first step only sets up the preconditioner.

    Args:
        params: parameters or groups.
        lr: learning rate.
        betas: rates of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
        precondition_frequency: steps between new eigenbases.
        max_precondition_dim: longer sides of a matrix are not preconditioned.
    """
    settings = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
    settings |= {"precondition_frequency": precondition_frequency, "max_precondition_dim": max_precondition_dim}
    return library("soap").SOAP(params, lr=lr, **settings)


def lion(
    params: Any, lr: float = 1e-4, *, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Sign of an interpolated momentum (Chen et al. 2023, arXiv 2302.06675).

    Args:
        params: parameters or groups.
        lr: learning rate.
        betas: weight of the momentum in the update, and its own rate.
        weight_decay: weight decay, times the learning rate.
    """
    return library("lion").Lion(params, lr=lr, betas=betas, weight_decay=weight_decay, weight_decouple=True)


def prodigy(
    params: Any,
    lr: float = 1.0,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    d0: float = 1e-6,
    d_coef: float = 1.0,
    safeguard_warmup: bool = True,
) -> torch.optim.Optimizer:
    """Adam whose learning rate follows an estimate of the distance to the solution (arXiv 2306.06101).

    Args:
        params: parameters or groups.
        lr: 1 is meant: the schedule's factor multiplies the estimated distance.
        betas: rates of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
        d0: first estimate of the distance.
        d_coef: factor of the estimate; the setting to tune instead of lr.
        safeguard_warmup: keep the estimate sound while the learning rate warms up.
    """
    settings = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "weight_decouple": True}
    settings |= {"d0": d0, "d_coef": d_coef, "safeguard_warmup": safeguard_warmup}
    return library("prodigy").Prodigy(params, lr=lr, **settings)


def adopt(
    params: Any,
    lr: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.9999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam that normalises before the new gradient: converges for any beta2 (Taniguchi et al. 2024, arXiv 2411.02853).

    Its first step only sets up the second moment.

    Args:
        params: parameters or groups.
        lr: learning rate.
        betas: rates of the first and the second moment.
        eps: least root of the second moment.
        weight_decay: weight decay, times the learning rate.
    """
    settings = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "weight_decouple": True}
    return library("adopt").ADOPT(params, lr=lr, clip_lambda=_fourth_root, **settings)


def mars(
    params: Any,
    lr: float = 3e-3,
    *,
    betas: tuple[float, float] = (0.95, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    gamma: float = 0.025,
    mars_type: str = "adamw",
    betas_1d: tuple[float, float] = (0.9, 0.95),
    weight_decay_1d: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam on variance-reduced gradients, from differences of successive ones (Yuan et al. 2024, arXiv 2411.10438).

    Args:
        params: parameters or groups.
        lr: learning rate.
        betas: rates of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
        gamma: strength of the correction by the previous gradient.
        mars_type: what the corrected gradient goes into: adamw, lion or shampoo.
        betas_1d: moments' rates for vectors, which get plain AdamW.
        weight_decay_1d: weight decay of vectors.
    """
    settings = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "weight_decouple": True, "gamma": gamma}
    settings |= {"mars_type": mars_type, "lr_1d": lr, "betas_1d": betas_1d, "weight_decay_1d": weight_decay_1d}
    return library("mars").MARS(params, lr=lr, **settings)


def lamb(
    params: Any,
    lr: float = 3e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam with each tensor's step in proportion to its norm, for large batches (You et al. 2019, arXiv 1904.00962).

    Args:
        params: parameters or groups.
        lr: learning rate.
        betas: rates of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
    """
    settings = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "weight_decouple": True}
    return library("lamb").Lamb(params, lr=lr, **settings)


def sf_adamw(
    params: Any,
    lr: float = 2.5e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    r: float = 0.0,
    weight_lr_power: float = 2.0,
) -> torch.optim.Optimizer:
    """AdamW at an average of its own iterates, without a schedule (Defazio et al. 2024, arXiv 2405.15682).

    Its `eval()` and `train()` must be called around evaluation. It needs a warm-up and no decay of the learning rate.

    Args:
        params: parameters or groups.
        lr: learning rate.
        betas: weight of the average in the training weights; rate of the second moment.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
        r: later weights count as t^r in the average.
        weight_lr_power: weights count as (largest lr so far)^this in the average.
    """
    settings = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "r": r, "weight_lr_power": weight_lr_power}
    return schedule_free("ScheduleFreeAdamW")(params, lr=lr, **settings)


def sf_sgd(
    params: Any,
    lr: float = 1.0,
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    r: float = 0.0,
    weight_lr_power: float = 2.0,
) -> torch.optim.Optimizer:
    """SGD at an average of its own iterates, without a schedule; `eval()` and `train()` as of `sf_adamw`.

    Args:
        params: parameters or groups.
        lr: learning rate.
        momentum: weight of the average in the training weights.
        weight_decay: weight decay, times the learning rate.
        r: later weights count as t^r in the average.
        weight_lr_power: weights count as (largest lr so far)^this in the average.
    """
    settings = {"momentum": momentum, "weight_decay": weight_decay, "r": r, "weight_lr_power": weight_lr_power}
    return schedule_free("ScheduleFreeSGD")(params, lr=lr, **settings)


def signsgd(params: Any, lr: float = 1e-4, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """Sign of the gradient (Bernstein et al. 2018, arXiv 1802.04434).

    Args:
        params: parameters or groups.
        lr: learning rate.
        weight_decay: weight decay, times the learning rate.
    """
    return signum(params, lr, momentum=0.0, weight_decay=weight_decay)


def signum(params: Any, lr: float = 1e-4, *, momentum: float = 0.9, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """Sign of the averaged gradient (Bernstein et al. 2018, arXiv 1802.04434).

    Args:
        params: parameters or groups.
        lr: learning rate.
        momentum: rate of the gradient's average.
        weight_decay: weight decay, times the learning rate.
    """
    return library("signum").SignSGD(params, lr=lr, momentum=momentum, weight_decay=weight_decay, weight_decouple=True)


# ---- the library ----


def library(name: str) -> Any:
    """The module pytorch_optimizer. MissingExtra: it is not installed."""
    try:
        import pytorch_optimizer
    except ImportError as error:
        raise MissingExtra("pytorch_optimizer", f"optimizer {name}") from error
    return pytorch_optimizer


def _fourth_root(step: float) -> float:
    return math.pow(step, 0.25)


def schedule_free(name: str) -> Callable[..., torch.optim.Optimizer]:
    """The library's schedule-free class with an exact switch: `train()` restores the weights before `eval()`.

    The library recomputes them from the averages, which rounds: a run would depend on how often it is evaluated.
    """
    base = getattr(library(name), name)

    class ScheduleFree(base):
        _kept: Mapping[Tensor, Tensor] = {}
        _evaluates = False

        @torch.no_grad()
        def eval(self) -> None:
            if not self._evaluates:
                self._kept = {p: p.detach().clone() for p in tensors_of(self.param_groups)}
                super().eval()
            self._evaluates = True

        @torch.no_grad()
        def train(self) -> None:
            super().train()
            for p, kept in self._kept.items():
                p.copy_(kept)
            self._kept, self._evaluates = {}, False

        def step(self, closure: Any = None) -> Any:
            if self._evaluates:
                raise ValueError(f"{name}: a step in evaluation mode; call train() first")
            return super().step(closure)

    ScheduleFree.__name__ = name
    return ScheduleFree


def tensors_of(params: Any) -> list[Tensor]:
    """The parameters of a list of parameters, named parameters or groups."""
    entries = [p for each in params for p in (each["params"] if isinstance(each, dict) else [each])]
    return [entry[1] if isinstance(entry, tuple) else entry for entry in entries]


def is_dense(p: Tensor) -> bool:
    """Whether a tensor's elements are next to each other in memory."""
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return p.is_contiguous() or p.is_contiguous(memory_format=layouts.get(p.ndim, torch.contiguous_format))


# ---- Sophia ----


class SophiaG(Optimizer):
    """Momentum divided by an estimate of the curvature, clipped to a sign (Liu et al. 2023, arXiv 2305.14342).

        m <- beta1 m + (1 - beta1) g
        h <- beta2 h + (1 - beta2) n s^2           every few steps; s the gradient of the mean loss of n sampled labels
        p <- p (1 - lr weight_decay) - lr clip(m / max(rho h, eps), -1, 1)

    Labels are sampled from the model's own distribution; n s^2 is then an unbiased estimate of the diagonal of the
    Gauss-Newton matrix. Before each step for which `hessian_is_due()`:

        cross_entropy(logits, sample(logits)).backward()
        optimizer.update_hessian(n_labels)
        optimizer.zero_grad()

    Args:
        params: parameters, groups, or a model, whose norms, biases and embeddings then do not decay.
        lr: learning rate.
        betas: rates of the momentum and the curvature.
        rho: scale of the curvature; larger values clip less.
        eps: least denominator.
        weight_decay: weight decay, times the learning rate.
        hessian_interval: steps between estimates of the curvature.
        maximize: ascend in place of descending.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 6e-4,
        *,
        betas: tuple[float, float] = (0.96, 0.99),
        rho: float = 0.05,
        eps: float = 1e-12,
        weight_decay: float = 0.0,
        hessian_interval: int = 10,
        maximize: bool = False,
    ):
        if not rho > 0 or not eps > 0 or hessian_interval < 1:
            raise ValueError(f"SophiaG: rho is {rho}, eps {eps}, hessian_interval {hessian_interval}; must be above 0")
        self._estimates: dict[Tensor, Tensor] = {}
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            rho=rho,
            eps=eps,
            weight_decay=weight_decay,
            hessian_interval=hessian_interval,
            maximize=maximize,
        )

    def new_state(self, group: Mapping[str, Any], p: Tensor) -> State:
        return {"exp_avg": zeros_like(p, group), "hessian": zeros_like(p, group)}

    def hessian_is_due(self) -> bool:
        """Whether the next step needs an estimate: the first, and every `hessian_interval` after it."""
        steps = [int(state["step"]) for state in self.state.values()]
        return max(steps, default=0) % self.param_groups[0]["hessian_interval"] == 0

    @torch.no_grad()
    def update_hessian(self, n_labels: float) -> None:
        """Keep `n_labels` times the squared gradients, of the mean loss of that many labels, for the next step."""
        moving = (p for group in self.param_groups for p in group["params"] if p.grad is not None)
        self._estimates = {p: p.grad.square().mul_(n_labels) for p in moving}

    def update(self) -> None:
        estimates, self._estimates = self._estimates, {}
        for group, p, g, state in self.moving(local=False):
            self._move(group, p, g, state, estimates.get(p))

    def _move(self, group: Group, p: Tensor, g: Tensor, state: State, estimate: Tensor | None) -> None:
        momentum, hessian = state["exp_avg"], state["hessian"]
        beta1, beta2 = group["betas"]
        momentum.lerp_(g.to(momentum.dtype), 1 - beta1)
        if estimate is not None:
            estimate = estimate.to(hessian.dtype)
            hessian.lerp_(torch.where(torch.isfinite(estimate), estimate, hessian), 1 - beta2)
        ratio = momentum / (group["rho"] * hessian).clamp_(min=group["eps"])
        p.mul_(1 - group["lr"] * group["weight_decay"]).add_(ratio.clamp_(-1, 1).to(p.dtype), alpha=-group["lr"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_estimates": self._estimates}
