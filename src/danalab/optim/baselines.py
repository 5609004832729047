"""The optimizers to compare with: from torch, and from the library pytorch-optimizer (extra `baselines`).

Each is a function of parameters, or groups, and settings whose defaults are the authors', or the usual ones
for language models. Weight decay multiplies the weights by 1 - lr weight_decay; only SGD's is part of the
gradient. Sophia is ours: the library has no Gauss-Newton-Bartlett estimate. `pytorch_optimizer:NAME` is any
other of the library's.
"""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError, import_extra

from .base import Optimizer, Rule

# ---- torch's ----

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def adamw(
    params: Any,
    lr: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    maximize: bool = False,
    fused: bool | None = None,
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay; Loshchilov and Hutter 2019, arXiv 1711.05101.

    Args:
        lr: learning rate.
        betas: rates of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
        amsgrad: keep the maximum of the second moment.
        maximize: ascend in place of descending.
        fused: torch's kernel; none = where no parameter has gaps in memory, as a view of a larger tensor has.
    """
    groups = list(params)
    if fused is None:
        # The kernel for CPUs takes every tensor for a dense one, and none takes DTensors among others.
        fused = len({hasattr(p, "to_local") for p in tensors_in(groups)}) < 2 and all(
            p.is_contiguous()
            or p.is_contiguous(memory_format=_CHANNELS_LAST.get(p.ndim, torch.contiguous_format))
            for p in tensors_in(groups)
        )
        fused = fused and all(p.is_floating_point() for p in tensors_in(groups))
    optimizer = torch.optim.AdamW(
        groups,
        lr=lr,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        amsgrad=amsgrad,
        maximize=maximize,
        fused=fused,
    )
    if fused:
        optimizer.register_step_pre_hook(_same_layout)
    return optimizer


def _same_layout(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """torch's kernel goes through memory in order: gradients and moments must lie there as their parameter."""
    for p in tensors_in(optimizer.param_groups):
        grad, state = p.grad, optimizer.state.get(p, {})
        if grad is None or grad.layout is not torch.strided:
            continue
        first = state.get("exp_avg", p)  # the other moments lie as this one
        if (grad.stride() == p.stride() == first.stride() and first.shape == p.shape) or hasattr(
            p, "to_local"
        ):
            continue
        if grad.stride() != p.stride():
            p.grad = torch.empty_like(p).copy_(grad)
        for name in state.keys() - {"step"}:
            if state[name].shape != p.shape:
                raise ValueError("adamw: a parameter has changed its shape; build the optimizer anew")
            if state[name].stride() != p.stride():
                state[name] = torch.empty_like(p).copy_(state[name])


def sgd(
    params: Any,
    lr: float = 0.3,
    *,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum; Robbins and Monro 1951, Polyak 1964.

    Args:
        lr: learning rate.
        momentum: rate of the momentum, a sum of gradients.
        dampening: a new gradient is weighted by 1 - dampening.
        nesterov: look ahead by one step of momentum.
        weight_decay: weight decay, added to the gradient.
        maximize: ascend in place of descending.
    """
    return torch.optim.SGD(
        params,
        lr=lr,
        momentum=momentum,
        dampening=dampening,
        nesterov=nesterov,
        weight_decay=weight_decay,
        maximize=maximize,
    )


def adafactor(
    params: Any,
    lr: float = 0.03,
    *,
    beta2_decay: float = -0.8,
    d: float = 1.0,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> torch.optim.Optimizer:
    """Adam with a factored second moment and steps relative to the weights; arXiv 1804.04235.

    Args:
        lr: a tensor's step is lr times its root mean square.
        beta2_decay: the second moment's rate is 1 - t^this.
        d: largest root mean square of an update.
        weight_decay: weight decay, times the learning rate.
        maximize: ascend in place of descending.
    """
    groups = whole_only("adafactor", params)
    optimizer = torch.optim.Adafactor(
        groups, lr=lr, beta2_decay=beta2_decay, d=d, weight_decay=weight_decay, maximize=maximize
    )
    optimizer.register_step_pre_hook(_skip_empty)
    return optimizer


def _skip_empty(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """torch's step divides by a parameter's size."""
    for p in tensors_in(optimizer.param_groups):
        if not p.numel():
            p.grad = None


# ---- pytorch-optimizer's ----


def library(name: str, params: Any, **settings: Any) -> torch.optim.Optimizer:
    """The library's class, with decoupled weight decay, and on CPUs without lists of tensors, which gain
    nothing there.

    MissingExtra: the library is not installed.
    """
    build = getattr(import_extra("pytorch_optimizer", f"optimizer {name}"), name)
    groups, takes = list(params), inspect.signature(build).parameters
    if "weight_decouple" in takes:
        settings["weight_decouple"] = True
    if "foreach" in takes and not any(p.is_cuda for p in tensors_in(groups)):
        settings["foreach"] = False
    return build(groups, **settings)


def tensors_in(groups: Any) -> list[Tensor]:
    """The parameters of parameters, named parameters or groups."""
    entries = [p for group in groups for p in (group["params"] if isinstance(group, dict) else [group])]
    return [entry[1] if isinstance(entry, tuple) else entry for entry in entries]


def whole_only(name: str, params: Any) -> list[Any]:
    """The parameters; UserError: they are sharded, and the optimizer needs whole tensors."""
    groups = list(params)
    if any(hasattr(p, "to_local") for p in tensors_in(groups)):
        raise UserError(
            f"optimizer '{name}' needs whole tensors, and these are sharded; use ddp, or another optimizer"
        )
    return groups


def soap(
    params: Any,
    lr: float = 3e-3,
    *,
    betas: tuple[float, float] = (0.95, 0.95),
    shampoo_beta: float | None = None,
    precondition_frequency: int = 10,
    max_precondition_dim: int = 10_000,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam in the eigenbasis of Shampoo's preconditioner; Vyas et al. 2024, arXiv 2409.11321.

    Its first step only sets up the preconditioner.

    Args:
        lr: learning rate.
        betas: rates of the first and the second moment.
        shampoo_beta: rate of the preconditioner's averages; none = the second of betas.
        precondition_frequency: steps between new eigenbases.
        max_precondition_dim: longer sides of a matrix are not preconditioned.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
    """
    return library(
        "SOAP",
        whole_only("soap", params),
        lr=lr,
        betas=betas,
        shampoo_beta=shampoo_beta,
        precondition_frequency=precondition_frequency,
        max_precondition_dim=max_precondition_dim,
        eps=eps,
        weight_decay=weight_decay,
    )


def lion(
    params: Any, lr: float = 2e-4, *, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Sign of an interpolated momentum; Chen et al. 2023, arXiv 2302.06675.

    Args:
        lr: learning rate, 3 to 10 times smaller than AdamW's.
        betas: weight of the momentum in the update, and its own rate.
        weight_decay: weight decay, times the learning rate.
    """
    return library("Lion", params, lr=lr, betas=betas, weight_decay=weight_decay)


def prodigy(
    params: Any,
    lr: float = 1.0,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    beta3: float | None = None,
    d0: float = 1e-6,
    d_coef: float = 1.0,
    bias_correction: bool = False,
    safeguard_warmup: bool = True,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam whose rate follows an estimate of the distance to the solution; arXiv 2306.06101.

    Args:
        lr: factor of the estimated distance; 1 is meant, and the schedule multiplies it.
        betas: rates of the first and the second moment.
        beta3: rate of the distance's averages; none = root of the second of betas.
        d0: first estimate of the distance.
        d_coef: factor of the estimate, to tune in place of lr.
        bias_correction: Adam's bias correction.
        safeguard_warmup: keep the estimate sound while the learning rate warms up.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
    """
    return library(
        "Prodigy",
        whole_only("prodigy", params),
        lr=lr,
        betas=betas,
        beta3=beta3,
        d0=d0,
        d_coef=d_coef,
        bias_correction=bias_correction,
        safeguard_warmup=safeguard_warmup,
        eps=eps,
        weight_decay=weight_decay,
    )


def adopt(
    params: Any,
    lr: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.9999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam normalised by the second moment before the new gradient; arXiv 2411.02853.

    Its first step only sets up the second moment.

    Args:
        lr: learning rate.
        betas: rates of the first and the second moment.
        eps: least root of the second moment.
        weight_decay: weight decay, times the learning rate.
    """
    return library(
        "ADOPT", params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, clip_lambda=fourth_root
    )


def fourth_root(step: float) -> float:
    """ADOPT's bound of a normalised gradient; the library's own is a lambda, which cannot be pickled."""
    return math.pow(step, 0.25)


def mars(
    params: Any,
    lr: float = 3e-3,
    *,
    betas: tuple[float, float] = (0.95, 0.99),
    gamma: float = 0.025,
    mars_type: str = "adamw",
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam on variance-reduced gradients, from differences of successive ones; arXiv 2411.10438.

    Args:
        lr: learning rate.
        betas: rates of the first and the second moment.
        gamma: strength of the correction by the previous gradient.
        mars_type: what the corrected gradient goes into, adamw, lion or shampoo.
        eps: added to the root of the second moment.
        weight_decay: weight decay of matrices, times the learning rate.
    """
    return library(
        "MARS",
        whole_only("mars", params),
        lr=lr,
        betas=betas,
        gamma=gamma,
        mars_type=mars_type,
        eps=eps,
        weight_decay=weight_decay,
        lr_1d=lr,
        weight_decay_1d=0.0,
    )


def lamb(
    params: Any,
    lr: float = 3e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam with each tensor's step in proportion to its norm; You et al. 2019, arXiv 1904.00962.

    Args:
        lr: learning rate.
        betas: rates of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
    """
    return library("Lamb", whole_only("lamb", params), lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


def sf_adamw(
    params: Any,
    lr: float = 2.5e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    r: float = 0.0,
    weight_lr_power: float = 2.0,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """AdamW at an average of its own iterates, without a schedule; arXiv 2405.15682.

    Its `eval()` and `train()` must be called around evaluation.

    Args:
        lr: learning rate; it needs a warmup and no decay.
        betas: weight of the average in the training weights, and rate of the second moment.
        r: later weights count as t^r in the average.
        weight_lr_power: weights count as (largest lr so far)^this in the average.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
    """
    return schedule_free(
        "ScheduleFreeAdamW",
        params,
        lr=lr,
        betas=betas,
        r=r,
        weight_lr_power=weight_lr_power,
        eps=eps,
        weight_decay=weight_decay,
    )


def sf_sgd(
    params: Any,
    lr: float = 3.0,
    *,
    momentum: float = 0.9,
    r: float = 0.0,
    weight_lr_power: float = 2.0,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """SGD at an average of its own iterates, without a schedule; arXiv 2405.15682.

    Its `eval()` and `train()` must be called around evaluation.

    Args:
        lr: learning rate; it needs a warmup and no decay.
        momentum: weight of the average in the training weights.
        r: later weights count as t^r in the average.
        weight_lr_power: weights count as (largest lr so far)^this in the average.
        weight_decay: weight decay, times the learning rate.
    """
    return schedule_free(
        "ScheduleFreeSGD",
        params,
        lr=lr,
        momentum=momentum,
        r=r,
        weight_lr_power=weight_lr_power,
        weight_decay=weight_decay,
    )


def schedule_free(name: str, params: Any, **settings: Any) -> torch.optim.Optimizer:
    """One of schedule_free.py's. MissingExtra: the library is not installed."""
    import_extra("pytorch_optimizer", f"optimizer {name}")
    from . import schedule_free as ours

    groups = list(params)
    return getattr(ours, name)(
        groups, foreach=None if any(p.is_cuda for p in tensors_in(groups)) else False, **settings
    )


def signsgd(params: Any, lr: float = 2e-4, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """Sign of the gradient; Bernstein et al. 2018, arXiv 1802.04434.

    Args:
        lr: learning rate.
        weight_decay: weight decay, times the learning rate.
    """
    return library("SignSGD", params, lr=lr, momentum=0.0, weight_decay=weight_decay)


def signum(
    params: Any, lr: float = 2e-4, *, momentum: float = 0.9, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Sign of the averaged gradient; Bernstein et al. 2018, arXiv 1802.04434.

    Args:
        lr: learning rate.
        momentum: rate of the gradient's average.
        weight_decay: weight decay, times the learning rate.
    """
    return library("SignSGD", params, lr=lr, momentum=momentum, weight_decay=weight_decay)


# ---- Sophia ----


def sophia_update(
    p: Tensor, g: Tensor, m: Tensor, h: Tensor, *, lr: Any, gain: Any, rho: Any, eps: Any, decay_factor: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """One step: the new p and m, and h as it is.

    m <- m + (1 - beta1) (g - m)          p <- p (1 - lr weight_decay) - lr clip(m / max(rho h, eps), -1, 1)
    """
    m = m + gain * (g - m)
    step = torch.clamp(m / torch.clamp(rho * h, min=eps), -1.0, 1.0)
    return decay_factor * p - lr * step, m, h


def sophia_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The scalars of `sophia_update`."""
    lr = float(group["lr"])
    decay_factor = 1 - lr * group["weight_decay"]
    return {
        "lr": lr,
        "gain": 1 - group["betas"][0],
        "decay_factor": decay_factor,
        **{k: group[k] for k in ("rho", "eps")},
    }


class SophiaG(Optimizer):
    """Momentum divided by an estimate of the curvature, clipped to a sign; Liu et al. 2023, arXiv 2305.14342.

    Before each step for which `hessian_is_due()`:

        cross_entropy(logits, sample(logits)).backward()      # with labels sampled from softmax(logits)
        optimizer.update_hessian(n_labels)                    # h <- beta2 h + (1 - beta2) n s^2
        optimizer.zero_grad()

    n s^2, from the gradient s of the mean loss of n sampled labels, is an unbiased estimate of the
    Gauss-Newton matrix's diagonal (Bartlett's identity). Coordinates of an estimate that are not finite are
    left out.

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

    rule = Rule(sophia_update, sophia_scalars, ("exp_avg", "hessian"))

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
        if not rho > 0 or hessian_interval < 1:
            raise ValueError(
                f"SophiaG: rho is {rho}, hessian_interval {hessian_interval}; they must be above 0"
            )
        self.hessian_interval = hessian_interval
        super().__init__(
            params, lr=lr, betas=betas, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "hessian_interval": self.hessian_interval}

    def hessian_is_due(self) -> bool:
        """Whether the next step needs an estimate: the first, and every `hessian_interval` after it."""
        return (
            max((int(state["step"]) for state in self.state.values()), default=0) % self.hessian_interval == 0
        )

    @torch.no_grad()
    def update_hessian(self, n_labels: float) -> None:
        """Average `n_labels` times the squared gradients of the mean loss of so many sampled labels."""
        for group, _, s, state in self.moving(count=False):
            h = state["hessian"]
            estimate = n_labels * s.to(h.dtype).square()
            h.lerp_(torch.where(torch.isfinite(estimate), estimate, h), 1 - group["betas"][1])
