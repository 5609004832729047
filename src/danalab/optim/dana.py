"""The Dana family: AdamW in logarithmic time, with a damped long momentum.

    a   = delta / (delta + t)              gain of step t = 1, 2, ...: beta1 = beta2 = 1 - a
    m  <- m + a (g - m)
    v  <- v + a (g^2 - v)                  r = sqrt(v) + eps
    p  <- p - lr [ g/r + gamma3 (clip((1+t)^(1-kappa) m/r) + alpha_offset m/r) ]
    p  <- p (1 - (lr / peak_lr) lambda(t))          lambda(t) = weight_decay / (1 + t / wd_ts)

    ADana         no clip
    DanaMK4       clip to +- clipsnr
    DanaStar      no clip; every coordinate has a time of its own, from tau, how often it gets a gradient
    DanaStarMK4   both

Source: arXiv 2602.05298.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .base import Optimizer, Rule, decay_factor, decay_rate, local_part, schedule_factor

Scalar = Any
"""A number, or a 0-dim tensor."""


def adana_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    lr: Scalar,
    gain: Scalar,
    alpha: Scalar,
    eps: Scalar = 1e-8,
    gamma3: Scalar = 1.0,
    alpha_offset: Scalar = 1.0,
    clipsnr: Scalar | None = None,
    decay_factor: Scalar = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of ADana (`clipsnr` None) or DanaMK4: the new p, m and v.

    Args:
        gain: a, the weight of the new gradient in the averages.
        alpha: (1+t)^(1-kappa), the damping.
        decay_factor: 1 - (lr / peak_lr) lambda(t).
    """
    m = m + gain * (g - m)
    v = v + gain * (g * g - v)
    r = v.sqrt() + eps
    if clipsnr is None:
        step = (g + gamma3 * (alpha + alpha_offset) * m) / r
    else:
        u = m / r
        step = g / r + gamma3 * (torch.clamp(alpha * u, -clipsnr, clipsnr) + alpha_offset * u)
    return decay_factor * (p - lr * step), m, v


def dana_star_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    tau: Tensor,
    *,
    lr: Scalar,
    gain: Scalar,
    t: Scalar,
    kappa: Scalar,
    eps: Scalar = 1e-8,
    gamma3: Scalar = 1.0,
    alpha_offset: Scalar = 1.0,
    clipsnr: Scalar | None = None,
    decay_factor: Scalar = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step of DanaStar (`clipsnr` None) or DanaStarMK4: the new p, m, v and tau.

        m, v, r as in `adana_update`          tau <- tau + a (|g| / (|g| + r) - tau)
        q = max(c / (1-c), 1 / (1+t)),  c = min(tau, 1/2)          T = max(tau t, 1)          n = sqrt(q) / r
        p <- p - lr [ n g + gamma3 (q clip(T^(1-kappa) m n / q) + alpha_offset m n) ]

    tau estimates q / (1+q), q the probability that a coordinate gets a gradient; T is its effective time.
    """
    m = m + gain * (g - m)
    v = v + gain * (g * g - v)
    r = v.sqrt() + eps
    size = g.abs()
    tau = tau + gain * (size / (size + r) - tau)
    c = torch.clamp(tau, max=0.5)
    q = torch.clamp(c / (1 - c), min=1 / (1 + t))
    n = q.sqrt() / r
    u = m * n
    damped = torch.clamp(tau * t, min=1.0) ** (1 - kappa) * u
    if clipsnr is not None:
        damped = torch.clamp(damped, -clipsnr * q, clipsnr * q)
    step = n * g + gamma3 * (damped + alpha_offset * u)
    return decay_factor * (p - lr * step), m, v, tau


def average_gain(group: Mapping[str, Any], t: int) -> float:
    """a(t) = delta / (delta + t): the averages cover about the last 1/delta of the run."""
    return group["delta"] / (group["delta"] + t)


def adana_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The scalars of `adana_update` in step t."""
    return {
        "lr": float(group["lr"]),
        "gain": average_gain(group, t),
        "alpha": (1 + t) ** (1 - group["kappa"]),
        "decay_factor": decay_factor(group, t),
        **{name: group[name] for name in ("eps", "gamma3", "alpha_offset")},
        "clipsnr": group.get("clipsnr"),
    }


def dana_star_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The scalars of `dana_star_update` in step t."""
    scalars = adana_scalars(group, t)
    del scalars["alpha"]
    return {**scalars, "t": t, "kappa": group["kappa"]}


ADANA = Rule(adana_update, adana_scalars, ("exp_avg", "exp_avg_sq"), kernel="adana")
DANA_STAR = Rule(dana_star_update, dana_star_scalars, ("exp_avg", "exp_avg_sq", "tau"), kernel="dana_star")


class LogTimeOptimizer(Optimizer):
    """An optimizer whose averages run in logarithmic time; it says what it does and finds, for logging.

    A member of the family takes the arguments that its signature has of these:

    Args:
        params: parameters, groups, or a model, whose norms, biases and embeddings then do not decay.
        lr: learning rate.
        delta: the averages cover about the last 1/delta of the run.
        kappa: exponent of the damping (1+t)^(1-kappa); 1 is none.
        eps: added to the root of the second moment.
        gamma3: factor of both momentum terms.
        alpha_offset: weight of the momentum that does not grow.
        weight_decay: independent weight decay, lambda(0).
        wd_ts: time scale on which it falls [steps]; none = constant.
        omega: in place of weight_decay: lambda(t) = omega / (wd_ts + t).
        horizon: length of the run, with omega: wd_ts is a tenth of it [steps].
        fused: one pass over memory, by C++ on a CPU and torch.compile on a GPU; none = where they can be had.
        maximize: ascend in place of descending.
        stochastic_rounding: round 16-bit parameters at random; "moments" = keep the moments in bfloat16, too.
    """

    decay_bound = 2.0  # their steps are several times as long as their learning rate

    def coefficients(self, group: int = 0) -> dict[str, float]:
        """Of a group's last step: `t`, `lr`, `schedule` (lr / peak_lr), `beta`, `alpha` and `lambda`."""
        own = self.param_groups[group]
        t = max((int(self.state[p]["step"]) for p in own["params"] if p in self.state), default=0)
        return {
            "t": t,
            "lr": float(own["lr"]),
            "schedule": schedule_factor(own),
            "beta": 1 - average_gain(own, t),
            "alpha": (1 + t) ** (1 - (own["kappa"] if "kappa" in own else own["kappa_min"])),
            "lambda": decay_rate(own, t),
        }

    def collect_stats(self) -> dict[str, float]:
        """Means over all coordinates, from the state; costs a pass, for logged steps. Collective on DTensors.

        `momentum_norm`: Euclidean norm of m; `effective_time`: mean of T; with a second moment `snr`: mean of |m|/r
        (with tau times sqrt(q)); `damped`: mean of the damped term, clipped; `clipped`: share of coordinates
        where the clip acts; `tau`: its mean.
        """
        return means_of(self.signal_totals())

    @torch.no_grad()
    def signal_totals(self) -> Tensor:
        """[STATISTICS and count, (sum, 1 where it exists)], float64, of all ranks of DTensors."""
        by_layout: dict[Any, Tensor] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if p not in self.state or not p.numel():
                    continue
                whole = self.state[p]["exp_avg"]
                state = {name: local_part(value) for name, value in self.state[p].items()}
                sums = {**signal_sums(state, group), "count": state["exp_avg"].numel()}
                rows = [[float(sums.get(name, 0.0)), float(name in sums)] for name in (*STATISTICS, "count")]
                mesh, placements = getattr(whole, "device_mesh", None), getattr(whole, "placements", ())
                key = mesh, placements, whole.device
                by_layout[key] = by_layout.get(key, 0.0) + torch.tensor(rows, dtype=torch.float64)
        totals = torch.zeros(len(STATISTICS) + 1, 2, dtype=torch.float64)
        for (mesh, placements, device), rows in by_layout.items():
            rows = rows.to(device)
            for dim, placement in enumerate(placements):
                if not placement.is_replicate():
                    torch.distributed.all_reduce(rows, group=mesh.get_group(dim))
            totals += rows.cpu()
        return totals


STATISTICS = ("momentum_norm", "effective_time", "snr", "damped", "clipped", "tau")


def means_of(totals: Tensor) -> dict[str, float]:
    """What `collect_stats` returns, of `signal_totals`."""
    *rows, (count, _) = totals.tolist()
    found = zip(STATISTICS, rows, strict=True)
    means = {name: total / max(count, 1) for name, (total, exists) in found if exists}
    return {**means, "momentum_norm": rows[0][0] ** 0.5}


def signal_sums(state: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    """Sums over a parameter's coordinates, of which `LogTimeOptimizer.collect_stats` has the means."""
    m, t = state["exp_avg"].float(), int(state["step"])
    sums: dict[str, Any] = {"momentum_norm": m.square().sum(), "effective_time": t * m.numel()}
    if "exp_avg_sq" not in state or "kappa" not in group:
        return sums
    u = m.abs() / (state["exp_avg_sq"].float().sqrt() + group["eps"])
    damped = (1 + t) ** (1 - group["kappa"]) * u
    if "tau" in state:
        tau = state["tau"].float()
        c = tau.clamp(max=0.5)
        q = torch.clamp(c / (1 - c), min=1 / (1 + t))
        time = torch.clamp(tau * t, min=1.0)
        u = u * q.sqrt()
        damped = time ** (1 - group["kappa"]) * u / q
        sums |= {"tau": tau.sum(), "effective_time": time.sum()}
    if group.get("clipsnr") is not None:
        sums["clipped"] = (damped > group["clipsnr"]).sum()
        damped = damped.clamp(max=group["clipsnr"])
    return {**sums, "snr": u.sum(), "damped": damped.sum()}


class ADana(LogTimeOptimizer):
    """AdamW with logarithmic-time averages, damped long momentum and decaying independent weight decay.

    The learning rate at construction is a group's `peak_lr`, which schedulers do not change; any group may
    override any setting. Weight decay does not follow the learning rate, only the schedule lr / peak_lr.
    """

    rule = ADANA

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        delta: float = 8.0,
        kappa: float = 0.85,
        eps: float = 1e-8,
        gamma3: float = 1.0,
        alpha_offset: float = 1.0,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        omega: float | None = None,
        horizon: float | None = None,
        fused: bool | None = None,
        maximize: bool = False,
        stochastic_rounding: bool | str = False,
    ):
        super().__init__(
            params,
            lr=lr,
            delta=delta,
            kappa=kappa,
            eps=eps,
            gamma3=gamma3,
            alpha_offset=alpha_offset,
            weight_decay=weight_decay,
            wd_ts=wd_ts,
            omega=omega,
            horizon=horizon,
            fused=fused,
            maximize=maximize,
            stochastic_rounding=stochastic_rounding,
        )


class DanaMK4(LogTimeOptimizer):
    """ADana whose damped momentum (1+t)^(1-kappa) |m|/r is clipped; all else as in `ADana`.

    Args:
        clipsnr: bound of the damped momentum's signal-to-noise ratio; none = no bound.
    """

    rule = ADANA

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        delta: float = 8.0,
        kappa: float = 0.85,
        eps: float = 1e-8,
        clipsnr: float | None = 2.0,
        gamma3: float = 1.0,
        alpha_offset: float = 1.0,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        omega: float | None = None,
        horizon: float | None = None,
        fused: bool | None = None,
        maximize: bool = False,
        stochastic_rounding: bool | str = False,
    ):
        super().__init__(
            params,
            lr=lr,
            delta=delta,
            kappa=kappa,
            eps=eps,
            clipsnr=clipsnr,
            gamma3=gamma3,
            alpha_offset=alpha_offset,
            weight_decay=weight_decay,
            wd_ts=wd_ts,
            omega=omega,
            horizon=horizon,
            fused=fused,
            maximize=maximize,
            stochastic_rounding=stochastic_rounding,
        )


class DanaStar(ADana):
    """ADana with an effective time for each coordinate, for uneven gradients; see `dana_star_update`."""

    rule = DANA_STAR


class DanaStarMK4(DanaMK4):
    """DanaStar whose damped momentum is clipped at `clipsnr`."""

    rule = DANA_STAR
