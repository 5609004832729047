"""Relatives of ADana, for linear problems, theory and comparison; and SNOO, a step around any optimizer's.

    a = delta / (delta + t)          m <- m + a (g - m)          alpha(t) = (1+t)^(1-kappa)
    Dana:      p <- p - lr [ g       + gamma3 (alpha(t) + alpha_offset) m       ]
    SignDana:  p <- p - lr [ sign(g) + gamma3 (alpha(t) + alpha_offset) sign(m) ]
    AutoDana:  ADana with a kappa of its own for every coordinate, see `auto_dana_update`
    SNOO:      every k steps X <- X - lr_outer (d + mu b),  d = X - x,  b <- mu b + d,  and x <- X

All but SNOO end with the independent weight decay of the family. Dana is linear in the gradients, as the
theory assumes: its learning rate is that of plain gradient descent, bounded by the curvature.

Source: arXiv 2602.05298; Ferbach et al. 2025, arXiv 2505.16098 (Dana); Bernstein et al. 2018, arXiv
1802.04434 (signs); Kallusky et al. 2025, arXiv 2510.15830 (SNOO). AutoDana's rule is our own.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .base import Rule, decay_factor, local_part, working_dtype
from .dana import DanaStarMK4, LogTimeOptimizer, Scalar, average_gain


def dana_update(
    p: Tensor, g: Tensor, m: Tensor, *, lr: Scalar, gain: Scalar, weight: Scalar, decay_factor: Scalar = 1.0
) -> tuple[Tensor, Tensor]:
    """One step of Dana: the new p and m; `weight` is gamma3 (alpha(t) + alpha_offset)."""
    m = m + gain * (g - m)
    return decay_factor * (p - lr * (g + weight * m)), m


def sign_dana_update(
    p: Tensor, g: Tensor, m: Tensor, *, lr: Scalar, gain: Scalar, weight: Scalar, decay_factor: Scalar = 1.0
) -> tuple[Tensor, Tensor]:
    """One step of SignDana: the new p and m; `weight` as in `dana_update`."""
    m = m + gain * (g - m)
    return decay_factor * (p - lr * (g.sign() + weight * m.sign())), m


def auto_dana_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    lr: Scalar,
    gain: Scalar,
    log2_time: Scalar,
    span: Scalar,
    alpha: Scalar,
    floor: Scalar,
    eps: Scalar = 1e-8,
    gamma3: Scalar = 1.0,
    alpha_offset: Scalar = 1.0,
    decay_factor: Scalar = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of AutoDana: the new p, m and v.

    If the gradients of a coordinate were independent noise, u = m / r would have the variance of the
    average's weights,
    N(t) = delta^2 / ((2 delta - 1) t + delta^2), while gradients that all agree give |u| = 1. What is above z standard
    deviations of the noise is signal, and its share of the power of m determines how fast the momentum grows:

        w = max(0, 1 - z^2 N(t) / u^2)          kappa = kappa_max - (kappa_max - kappa_min) w

    Args:
        log2_time: log2(1 + t).
        span: kappa_max - kappa_min.
        alpha: (1+t)^(1-kappa_max), the damping where there is no signal.
        floor: z^2 N(t).
    """
    m = m + gain * (g - m)
    v = v + gain * (g * g - v)
    r = v.sqrt() + eps
    u = m / r
    squares = u * u
    signal = torch.where(squares > floor, 1 - floor / squares, 0.0)
    growth = torch.exp2(log2_time * (span * signal))
    step = g / r + gamma3 * (alpha * growth + alpha_offset) * u
    return decay_factor * (p - lr * step), m, v


def dana_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The scalars of `dana_update` and `sign_dana_update` in step t."""
    return {
        "lr": float(group["lr"]),
        "gain": average_gain(group, t),
        "weight": group["gamma3"] * ((1 + t) ** (1 - group["kappa"]) + group["alpha_offset"]),
        "decay_factor": decay_factor(group, t),
    }


def auto_dana_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The scalars of `auto_dana_update` in step t."""
    delta = group["delta"]
    return {
        "lr": float(group["lr"]),
        "gain": average_gain(group, t),
        "log2_time": math.log2(1 + t),
        "span": group["kappa_max"] - group["kappa_min"],
        "alpha": (1 + t) ** (1 - group["kappa_max"]),
        "floor": group["significance"] ** 2 * delta**2 / ((2 * delta - 1) * t + delta**2),
        "decay_factor": decay_factor(group, t),
        **{name: group[name] for name in ("eps", "gamma3", "alpha_offset")},
    }


class Dana(LogTimeOptimizer):
    """ADana without normalisation, for linear problems and the theory."""

    rule = Rule(dana_update, dana_scalars, ("exp_avg",))

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        delta: float = 8.0,
        kappa: float = 0.85,
        gamma3: float = 1.0,
        alpha_offset: float = 0.0,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        omega: float | None = None,
        horizon: float | None = None,
        maximize: bool = False,
    ):
        super().__init__(
            params,
            lr=lr,
            delta=delta,
            kappa=kappa,
            gamma3=gamma3,
            alpha_offset=alpha_offset,
            weight_decay=weight_decay,
            wd_ts=wd_ts,
            omega=omega,
            horizon=horizon,
            maximize=maximize,
        )


class SignDana(Dana):
    """ADana with signs in place of its normalisation; steps are several times as long, rates smaller."""

    rule = Rule(sign_dana_update, dana_scalars, ("exp_avg",))

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        *,
        delta: float = 8.0,
        kappa: float = 0.85,
        gamma3: float = 1.0,
        alpha_offset: float = 1.0,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        omega: float | None = None,
        horizon: float | None = None,
        maximize: bool = False,
    ):
        super().__init__(
            params,
            lr,
            delta=delta,
            kappa=kappa,
            gamma3=gamma3,
            alpha_offset=alpha_offset,
            weight_decay=weight_decay,
            wd_ts=wd_ts,
            omega=omega,
            horizon=horizon,
            maximize=maximize,
        )


class AutoDana(LogTimeOptimizer):
    """ADana that chooses kappa, for every coordinate and step, by its momentum's signal-to-noise ratio.

    Args:
        kappa_min: kappa of coordinates whose gradients agree.
        kappa_max: kappa of coordinates whose gradients are noise.
        significance: standard deviations of noise above which momentum counts as signal.
    """

    rule = Rule(auto_dana_update, auto_dana_scalars, ("exp_avg", "exp_avg_sq"))

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        delta: float = 8.0,
        kappa_min: float = 0.75,
        kappa_max: float = 1.0,
        significance: float = 2.0,
        eps: float = 1e-8,
        gamma3: float = 1.0,
        alpha_offset: float = 1.0,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        omega: float | None = None,
        horizon: float | None = None,
        maximize: bool = False,
    ):
        super().__init__(
            params,
            lr=lr,
            delta=delta,
            kappa_min=kappa_min,
            kappa_max=kappa_max,
            significance=significance,
            eps=eps,
            gamma3=gamma3,
            alpha_offset=alpha_offset,
            weight_decay=weight_decay,
            wd_ts=wd_ts,
            omega=omega,
            horizon=horizon,
            maximize=maximize,
        )

    def check(self, group: Mapping[str, Any]) -> None:
        """As in the base class, and kappa_min is at most kappa_max."""
        super().check(group)
        low, high = group["kappa_min"], group["kappa_max"]
        if low > high:
            raise ValueError(f"AutoDana: kappa_min is {low} and kappa_max {high}; they must be in this order")


# ---- SNOO ----


def snoo_update(x: Tensor, outer: Tensor, momentum: Tensor, *, lr: float, mu: float) -> tuple[Tensor, Tensor]:
    """The outer step: SGD with Nesterov momentum on the outer weights X along d = X - x; the new X and b."""
    d = outer - x
    momentum = mu * momentum + d
    return outer - lr * (d + mu * momentum), momentum


class SNOO(torch.optim.Optimizer):
    """Any optimizer, with a Nesterov step along the displacement of every k of its steps.

        optimizer = SNOO(DanaStarMK4(model.parameters(), lr=1e-3), k=20)

    Groups and state are the inner optimizer's; the state has `outer`, `outer_momentum` and `outer_step`, too.

    Args:
        inner: the optimizer that makes the steps.
        k: inner steps of a period.
        lr_outer: learning rate of the outer step; 1, with `mu` 0, leaves the inner optimizer unchanged.
        mu: the outer momentum's rate.
    """

    def __init__(self, inner: torch.optim.Optimizer, *, k: int = 20, lr_outer: float = 0.5, mu: float = 0.9):
        if not isinstance(inner, torch.optim.Optimizer):
            raise ValueError(f"SNOO: inner is {type(inner).__name__}; it must be an optimizer")
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"SNOO: k is {k!r}; it must be a whole number of steps, at least 1")
        if not 0 < lr_outer < math.inf or not 0 <= mu < 1:
            raise ValueError(
                f"SNOO: lr_outer is {lr_outer}, mu {mu}; they must be above 0, and at least 0 and below 1"
            )
        self.inner = inner
        outer = {"outer_k": k, "outer_lr": lr_outer, "outer_mu": mu}
        super().__init__(inner.param_groups, {**inner.defaults, **outer})
        self._share()

    def _share(self) -> None:
        """Groups and state are the inner optimizer's own objects; where it has state, so has this one."""
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        for p in [*self.state]:
            self._outer(p)

    def _outer(self, p: Tensor) -> dict[str, Any]:
        """A parameter's state, created where it is new, in float32 or wider."""
        state = self.state[p]
        dtype = working_dtype(p)
        for key in ("outer", "outer_momentum"):
            state[key] = (
                state[key].to(dtype)
                if key in state
                else torch.zeros_like(p, dtype=dtype, requires_grad=False)
            )
        if "outer_step" not in state:
            state["outer_step"] = torch.zeros((), dtype=torch.int64)
        return state

    @torch._disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A step of the inner optimizer, and every k steps of a parameter the outer one."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        moving = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        first = {p: p.clone() for _, p in moving if not int(self.state.get(p, {}).get("outer_step", 0))}
        self.inner.step()
        for group, p in moving:
            state = self._outer(p)
            if p in first:  # the outer weights start where the first step does
                state["outer"].copy_(first[p])
            state["outer_step"] += 1
            if int(state["outer_step"]) % group["outer_k"] == 0:
                x, outer = local_part(p), local_part(state["outer"])
                b = local_part(state["outer_momentum"])
                new = snoo_update(x.to(outer.dtype), outer, b, lr=group["outer_lr"], mu=group["outer_mu"])
                outer.copy_(new[0])
                b.copy_(new[1])
                x.copy_(outer)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to both."""
        if any(group is param_group for group in self.inner.param_groups):  # those of the constructor
            super().add_param_group(param_group)
            return
        self.inner.add_param_group(param_group)
        outer = {key: value for key, value in self.defaults.items() if key.startswith("outer_")}
        self.inner.param_groups[-1] |= {**outer, **self.inner.param_groups[-1]}
        self._share()

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, with the outer state."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the inner optimizer's."""
        self.inner.load_state_dict(state_dict)
        self._share()

    @property
    def coefficients(self) -> Callable[[], dict[str, float]]:
        """Of the inner optimizer, if it has some."""
        return self.inner.coefficients  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def collect_stats(self) -> Callable[[], dict[str, float]]:
        """Of the inner optimizer, if it has some."""
        return self.inner.collect_stats  # pyright: ignore[reportAttributeAccessIssue]

    def __getstate__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {**super().__getstate__(), "inner": self.inner}


def snoo(
    params: Any,
    lr: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    k: int = 20,
    lr_outer: float = 0.5,
    mu: float = 0.9,
) -> SNOO:
    """torch's AdamW inside SNOO.

    Args:
        lr: learning rate.
        betas: rates of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
        k: inner steps of a period.
        lr_outer: learning rate of the outer step.
        mu: the outer momentum's rate.
    """
    inner = torch.optim.AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    return SNOO(inner, k=k, lr_outer=lr_outer, mu=mu)


def snoo_dana(
    params: Any,
    lr: float = 1e-3,
    *,
    delta: float = 8.0,
    kappa: float = 0.85,
    clipsnr: float | None = 2.0,
    weight_decay: float = 0.0,
    wd_ts: float | None = None,
    omega: float | None = None,
    horizon: float | None = None,
    k: int = 20,
    lr_outer: float = 0.5,
    mu: float = 0.9,
) -> SNOO:
    """DanaStarMK4 inside SNOO.

    Args:
        params: parameters, groups, or a model, whose norms, biases and embeddings then do not decay.
        lr: learning rate.
        delta: the averages cover about the last 1/delta of the run.
        kappa: exponent of the damping; 1 is none.
        clipsnr: bound of the damped momentum's signal-to-noise ratio; none = no bound.
        weight_decay: independent weight decay, lambda(0).
        wd_ts: time scale on which it falls [steps]; none = constant.
        omega: in place of weight_decay: lambda(t) = omega / (wd_ts + t).
        horizon: length of the run, with omega: wd_ts is a tenth of it [steps].
        k: inner steps of a period.
        lr_outer: learning rate of the outer step.
        mu: the outer momentum's rate.
    """
    inner = DanaStarMK4(
        params,
        lr,
        delta=delta,
        kappa=kappa,
        clipsnr=clipsnr,
        weight_decay=weight_decay,
        wd_ts=wd_ts,
        omega=omega,
        horizon=horizon,
    )
    return SNOO(inner, k=k, lr_outer=lr_outer, mu=mu)
