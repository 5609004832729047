"""Momentum cooldown: which change of the momentum with the learning rate gives the least final risk, in exact runs.

    s(t) = lr(t) / peak          time(t) = t, or the accumulated learning rate  sum_i s(i)          (t = 1, 2, ...)
    y <- y + Delta (g - y),      theta <- theta - peak s^(1 + r) [ g + ((1 + time s^w)^(1 - kappa) s^a + offset) y ]
    Delta(t) = s^b delta / (delta + time s^m)

With all exponents 0 this is ADana, whose momentum knows nothing of the learning rate.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from danalab.errors import UserError
from danalab.theory.algorithms import Rates
from danalab.theory.moments import moment_recursion
from danalab.theory.problem import Spectrum, binned_spectrum
from danalab_annexes.theory.studies import CooldownFlags
from danalab_annexes.theory.study import Study, canvas, label

POINTS = ((0.6, 0.3), (1.0, 0.3), (1.0, 0.7), (1.3, 0.7))
"""Exponents (alpha, beta) of the problems."""
DECAYS = {"linear": {}, "cosine": {"cosine": 1.0}, "wsd": {"hold": 0.8}, "warm-up": {"warmup": 0.05}}
"""Learning-rate schedules, all to 0; wsd: constant, then linear over the last fifth; warm-up: linear after a rise."""
KAPPAS = np.asarray([0.3, 0.45, 0.6, 0.75, 0.9, 1.1, 1.4, 1.8])
LR_POWERS = np.arange(-10.0, 2.1, 0.75)
"""Powers of two of the peak learning rate, in units of 1 / (2 trace)."""


def compute(p: CooldownFlags) -> Study:
    """Least excess risk at the end of a run over learning rate and kappa, for each candidate on each problem.

    UserError: an empty list, or a value that is not positive.
    """
    horizons, deltas, noises = p.horizons, p.deltas, p.noises
    for name, values, least in (("horizons", horizons, 10), ("deltas", deltas, 0.1), ("noises", noises, 0)):
        if not values or not min(values) >= least:
            raise UserError(f"{name} = {list(values)}: at least one value is needed, each at least {least:g}")
    problems = list(itertools.product(POINTS, noises, horizons, DECAYS))
    best = np.empty((len(problems), len(deltas), len(COOLDOWNS)))
    edges = np.zeros(len(COOLDOWNS), int)
    for i, ((alpha, beta), noise, horizon, schedule) in enumerate(problems):
        spectrum = binned_spectrum(alpha, beta, p.d, noise, exact=20, per_decade=12)
        for k, delta in enumerate(deltas):
            risk = _final_risk(spectrum, LearningRateDecay(float(horizon), **DECAYS[schedule]), delta)
            best[i, k] = risk.min(axis=(1, 2))
            edges += _is_at_edge(risk)
    points, noise, horizon, schedule = (list(column) for column in zip(*problems, strict=True))
    arrays = {"exponents": points, "noise": noise, "horizon": horizon, "schedule": [*map([*DECAYS].index, schedule)]}
    arrays = {**{name: np.asarray(values) for name, values in arrays.items()}, "risk": best}
    ratio, tuned = best / best[..., :1], best.min(axis=1) / best[..., 0].min(axis=1)[:, None]
    table = [
        {
            "cooldown": name,
            "mean": _mean(ratio[..., i]),
            "best": float(ratio[..., i].min()),
            "worst": float(ratio[..., i].max()),
            **{key: _mean(ratio[arrays["schedule"] == k, :, i]) for k, key in enumerate(DECAYS)},
            "delta tuned": _mean(tuned[:, i]),
            "at an edge": f"{edges[i] / (len(problems) * len(deltas)):.0%}",
        }
        for i, name in enumerate(COOLDOWNS)
    ]
    findings = {
        "excess risk at the end, relative to no cooldown": table,
        "least mean": min(table, key=lambda row: row["mean"])["cooldown"],
        "least worst case": min(table, key=lambda row: row["worst"])["cooldown"],
        "problems": len(problems) * len(deltas),
    }
    return Study("cooldown", arrays, {**p.settings(), "cooldowns": list(COOLDOWNS)}, findings, draw_figure)


def _mean(ratios: np.ndarray) -> float:
    return float(np.exp(np.log(ratios).mean()))


def _final_risk(spectrum: Spectrum, decay: LearningRateDecay, delta: float) -> np.ndarray:
    """Excess risk after the last step [candidates, kappas, learning rates]; infinite where the run diverges."""
    lrs = 0.5 / spectrum.trace * 2.0**LR_POWERS
    grid = itertools.product(COOLDOWNS.values(), KAPPAS, lrs)
    sweep = [CooledADana(lr, kappa, delta, decay, cooldown) for cooldown, kappa, lr in grid]
    steps = int(decay.horizon)
    risk = moment_recursion(spectrum, sweep, steps, times=[steps]).risk[:, -1] - spectrum.limit
    return np.where(risk > 0, risk, np.inf).reshape(len(COOLDOWNS), len(KAPPAS), len(lrs))


def _is_at_edge(risk: np.ndarray) -> np.ndarray:
    """For each candidate, whether its best kappa or learning rate is the first or the last of the grid."""
    places = [np.unravel_index(int(k), risk.shape[1:]) for k in risk.reshape(len(risk), -1).argmin(axis=1)]
    return np.asarray([any(i in (0, n - 1) for i, n in zip(at, risk.shape[1:], strict=True)) for at in places], int)


def draw_figure(study: Study) -> Figure:
    """Left: all problems, one dot each, and their mean; right: the mean against the length of the run."""
    names, risk = study.parameters["cooldowns"], study.arrays["risk"]
    ratio = risk / risk[..., :1]
    figure, axes = canvas(1, 2, 6.4, 4.4)
    spread, growth = axes[0]
    jitter = np.random.default_rng(0).uniform(-0.25, 0.25, ratio[..., 0].size)
    for i in range(len(names)):
        height = len(names) - 1 - i
        spread.plot(ratio[..., i].ravel(), height + jitter, ls="", marker=".", ms=3, color="#9ecae1")
        spread.plot(_mean(ratio[..., i]), height, marker="D", ms=6, color="#08306b")
    spread.set_yticks(range(len(names)), names[::-1])
    spread.axvline(1, color="black", lw=1)
    spread.set(xlabel="excess risk at the end / without cooldown", title="each problem (dot), their mean (diamond)")
    horizons = study.parameters["horizons"]
    colors = {"memory t s": "#08306b", "memory t s^2": "#2171b5", "memory t s, alpha s^0.5": "#d62728"}
    colors |= {"alpha s": "#ff9896", "clock": "#7f7f7f"}
    for name, color in colors.items():
        column = ratio[..., names.index(name)]
        means = [_mean(column[study.arrays["horizon"] == h]) for h in horizons]
        growth.plot(horizons, means, marker="o", color=color, label=name)
    growth.axhline(1, color="black", lw=1)
    label(growth, "mean over problems", "length of the run [steps]", "", "best", "x")
    return figure


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LearningRateDecay:
    """s(t): up to 1 in a line, 1 until `hold` of the run, then down to 0 at its end, in a line or in half a cosine."""

    horizon: Any
    """Length of the run [steps]."""
    hold: Any = 0.0
    cosine: Any = 0.0
    """1: half a cosine."""
    warmup: Any = 0.0
    """Share of the run in which s rises."""

    def factor(self, t: Any) -> Any:
        """s of the 0-based step t."""
        x = self._share(t)
        falling = jnp.where(self.cosine > 0, (1 + jnp.cos(jnp.pi * x)) / 2, 1 - x)
        return jnp.minimum((t + 1) / self._rise, falling)

    def clock(self, t: Any) -> Any:
        """Accumulated learning rate, in steps at its peak, at the end of the 0-based step t."""
        x = self._share(t + 1)
        falling = jnp.where(self.cosine > 0, x / 2 + jnp.sin(jnp.pi * x) / (2 * jnp.pi), x - x**2 / 2)
        rising = jnp.minimum(t + 1, self._rise) ** 2 / (2 * self._rise)
        level = jnp.clip(t + 1 - self._rise, 0, jnp.maximum(self._start * self.horizon - self._rise, 0))
        return rising + level + (1 - self._start) * self.horizon * falling

    @property
    def _rise(self) -> Any:
        """Steps of the warm-up; without one, one step, which has s = 1."""
        return jnp.maximum(self.warmup * self.horizon, 1.0)

    @property
    def _start(self) -> Any:
        """Share of the run at which the decay begins."""
        return jnp.maximum(self.hold, self.warmup)

    def _share(self, t: Any) -> Any:
        return jnp.clip((t / self.horizon - self._start) / (1 - self._start), 0.0, 1.0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cooldown:
    """Exponents of s in the momentum's schedules."""

    memory: Any = 0.0
    """m, of the time in Delta."""
    time: Any = 0.0
    """w, of the time in the momentum's weight."""
    weight: Any = 0.0
    """a, of the momentum's weight itself."""
    gradient: Any = 0.0
    """b, of Delta: gradients are averaged by the learning rate they came with."""
    rate: Any = 0.0
    """r, of the learning rate itself, which is no cooldown of the momentum: a control."""
    clock: Any = 0.0
    """1: time is the accumulated learning rate."""


COOLDOWNS = {
    "none": Cooldown(),
    "alpha s": Cooldown(weight=1),
    "alpha s^2": Cooldown(weight=2),
    "memory t s^0.5": Cooldown(memory=0.5),
    "memory t s": Cooldown(memory=1),
    "memory t s^2": Cooldown(memory=2),
    "memory and alpha, t s": Cooldown(memory=1, time=1),
    "memory t s, alpha s^0.5": Cooldown(memory=1, weight=0.5),
    "memory t s, alpha s": Cooldown(memory=1, weight=1),
    "clock": Cooldown(clock=1),
    "clock, gradients by s": Cooldown(clock=1, gradient=1),
    "clock, memory s": Cooldown(clock=1, memory=1),
    "learning rate s^2": Cooldown(rate=1),
}
"""Candidates by name."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CooledADana:
    """ADana without its normalisation, with a learning rate that decays and a momentum that cools down."""

    lr: Any
    """Peak learning rate."""
    kappa: Any
    delta: Any
    decay: LearningRateDecay
    cooldown: Cooldown = field(default_factory=Cooldown)
    offset: Any = 1.0
    """Added to the damping; 1 is the published implementation of ADana."""

    def at(self, t: Any) -> Rates:
        s, c = self.decay.factor(t), self.cooldown
        time = jnp.where(c.clock > 0, self.decay.clock(t), t + 1)
        forget = s**c.gradient * self.delta / (self.delta + time * s**c.memory)
        weight = (1 + time * s**c.time) ** (1 - self.kappa) * s**c.weight + self.offset
        lr = self.lr * s ** (1 + c.rate)
        return Rates(forget, lr, lr * weight, forget)
