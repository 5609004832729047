"""The memory of momentum: which path of its mean age gives the least final risk, by what is done to the momentum.

    A(0) = 0,  A(t) = min(target(t, s(t)), 1 + A(t-1)),  a(t) = 1 - A(t) / (1 + A(t-1))      mean age A, gain a
    m <- m + a (g - m),   u = fresh g + (1 - fresh) m,   theta <- theta - peak s(t) map(u)   t = 0, 1, ...
    maps: linear  u;   root  u / sqrt(v), v the average of g^2 in log time (Adam, ADana);   sign  sign(u)

A mode's parameter and momentum are followed by their means and covariance. That is exact for the linear map; `root`
takes v at its mean, and `sign` treats u as normal (statistical linearisation: the covariance of sign(u) with any normal
z is sqrt(2 / pi) exp(-mean^2 / (2 var)) / sd of that of u), which a test holds to simulated runs. Signs of coordinates
stand for orthogonalisation, which gives all singular values of the momentum the size 1.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.special import erf
from matplotlib.figure import Figure

from danalab.errors import UserError
from danalab.optim.settings import LogTime
from danalab.theory.curve import enable_x64
from danalab.theory.problem import Spectrum, binned_spectrum
from danalab_annexes.theory.cooldown import LearningRateDecay
from danalab_annexes.theory.studies import MemoryFlags
from danalab_annexes.theory.study import Study, canvas, label

MAPS = ("linear", "root", "sign")
"""What is done to the momentum."""
DELTA = LogTime.delta
"""Of log time: the mean age is t / (DELTA + 1)."""
CONSTANTS = tuple(float(x) for x in 2.0 ** np.arange(0, 10.5, 0.5))
"""Constant mean ages [steps]."""
FOLLOW = ((1.0, 0.02), (1.0, 0.05), (1.0, 0.1), (0.5, 0.02), (0.5, 0.1), (-0.5, 0.001), (-0.5, 0.003), (-0.5, 0.01))
"""(power, peak / steps) of ages that fall or rise with the learning rate: min(t / 9, max(1, peak s^power))."""
KNOTS = 10
"""Of the best path, equidistant in log t."""
PEAKS = np.arange(-14.0, 5.0, 0.5)
"""Powers of two of the peak learning rate, in units of each map's own."""


def compute(p: MemoryFlags) -> Study:
    """Least excess risk over the peak learning rate for each path of the mean age, map, batch and length of run.

    Runs have 5% of warm-up and a cosine to 0. UserError: an empty list or values out of
    their range.
    """
    horizons, batches, noises = p.horizons, p.batches, p.noises
    for name, values, least in (("horizons", horizons, 50), ("batches", batches, 1e-3), ("noises", noises, 0)):
        if not values or not min(values) >= least:
            raise UserError(f"{name} is {list(values)}; it must be one or more numbers of at least {least:g}")
    if not 0 <= p.fresh <= 1:
        raise UserError(f"fresh is {p.fresh:g}; it must be from 0 to 1")
    names, settings = targets(1)[0], {key: getattr(p, key) for key in ("alpha", "beta", "d", "fresh", "descents")}
    cells, rows = {}, []
    for kind, noise, batch in itertools.product(MAPS, noises, batches):
        spectrum = binned_spectrum(p.alpha, p.beta, p.d, noise, exact=10, per_decade=8)
        with enable_x64():
            study = [_Cell(spectrum, kind, steps, batch, p.fresh, p.descents) for steps in horizons]
        ideal = [_lowest(np.log2(CONSTANTS), np.log(cell.risk[: len(CONSTANTS)]))[0] for cell in study]
        slope = float(np.polyfit(np.log2(horizons), ideal, 1)[0]) if len(horizons) > 1 else None
        for cell, power in zip(study, ideal, strict=True):
            cells[kind, noise, batch, cell.steps] = cell
            setting = {"map": kind, "noise": noise, "batch": batch, "steps": cell.steps}
            rows.append(setting | {"best constant age": 2.0**power, "its exponent in steps": slope} | cell.row(names))
    arrays = {
        "risk": np.asarray([cell.risk for cell in cells.values()]),
        "least": np.asarray([cell.least for cell in cells.values()]),
        "best_path": np.asarray([np.interp(np.linspace(0, cell.steps - 1, 1001), np.arange(cell.steps), cell.path)
                                 for cell in cells.values()]),
    }  # fmt: skip
    settings |= {"paths": names, "cells": list(cells)}
    return Study("memory", arrays, settings, {"excess risk at the end, over that of the best path": rows}, draw_figure)


class _Cell:
    """The paths of one map, length and batch: least excess risks, the best path [steps] and its risk."""

    def __init__(self, spectrum: Spectrum, kind: str, steps: int, batch: float, fresh: float, descents: int):
        self.steps = steps
        ages = targets(steps)[1]
        found = [final_risks(spectrum, kind, age, steps, batch, fresh) for age in ages]
        peaks, valleys = zip(*(_lowest(PEAKS, np.log(risk)) for risk in found), strict=True)
        self.risk = np.exp(valleys)
        first = int(self.risk.argmin())
        self.least, self.path = best_path(spectrum, kind, ages[first], peaks[first], steps, batch, fresh, descents)
        self.least = min(self.least, float(self.risk.min()))

    def row(self, names: list[str]) -> dict[str, Any]:
        """What the page shows of it."""
        ratio, n = self.risk / self.least, len(CONSTANTS)
        return {
            "best constant": float(ratio[:n].min()),
            "log time": float(ratio[n]),
            "follows the rate": float(ratio[n + 1 :].min()),
            "which": names[n + 1 + int(ratio[n + 1 :].argmin())],
            "age of the best path at 25, 50, 75, 95% of the run": [
                float(self.path[int(share * self.steps)]) for share in (0.25, 0.5, 0.75, 0.95)
            ],
        }


def schedule(steps: int) -> np.ndarray:
    """s(t) of the study [steps]."""
    return np.asarray(LearningRateDecay(float(steps), cosine=1.0, warmup=0.05).factor(jnp.arange(steps)))


def targets(steps: int) -> tuple[list[str], np.ndarray]:
    """Names of the paths, and the ages that they ask for [paths, steps]."""
    t, s = np.arange(steps), schedule(steps)
    log_time = t / (DELTA + 1)
    named = {f"constant {age:.3g}": np.full(steps, age) for age in CONSTANTS} | {"log time": log_time}
    for power, share in FOLLOW:
        named[f"follow {share:g} T s^{power:g}"] = np.minimum(
            log_time, np.maximum(1.0, share * steps * np.maximum(s, 1e-3) ** power)
        )
    return list(named), np.stack([*named.values()])


@jax.jit
def gains(ages: Array) -> tuple[Array, Array]:
    """Gains and mean ages [..., steps] of the ages asked for [..., steps]."""

    def step(age: Array, target: Array) -> tuple[Array, tuple[Array, Array]]:
        new = jnp.minimum(target, age + 1)
        return new, (1 - new / (1 + age), new)

    first = jnp.zeros(ages.shape[:-1])
    _, (rest, followed) = jax.lax.scan(step, first, jnp.moveaxis(ages[..., 1:], -1, 0))
    start = first[..., None]
    return (
        jnp.concatenate([start + 1, jnp.moveaxis(rest, 0, -1)], -1),
        jnp.concatenate([start, jnp.moveaxis(followed, 0, -1)], -1),
    )


class Modes(NamedTuple):
    """Means and covariances of a mode's distance to the optimum x and momentum m, and the average of its g^2."""

    x: Array
    m: Array
    xx: Array
    xm: Array
    mm: Array
    v: Array


@partial(jax.jit, static_argnames=("kind",))
def run(spectrum: tuple[Array, ...], kind: str, gain: Array, lr: Array, batch: float, fresh: float) -> Array:
    """Excess risk after the last step, for gains [..., steps] and learning rates [..., steps] of one leading shape."""
    lam, rho, weight, limit = spectrum
    zero = jnp.zeros((*gain.shape[:-1], len(lam)))
    start = Modes(zero + jnp.sqrt(rho), zero, zero, zero, zero, zero)

    def excess(x: Array, xx: Array) -> Array:
        return 0.5 * jnp.sum(weight * lam * (x * x + xx), axis=-1)

    def step(now: Modes, inputs: tuple[Array, Array, Array]) -> tuple[Modes, None]:
        a, h, t = inputs[0][..., None], inputs[1][..., None], inputs[2]
        square = now.x * now.x + now.xx
        noise = (2 * lam * (limit + excess(now.x, now.xx))[..., None] + lam * lam * square) / batch
        g, gg = lam * now.x, lam * lam * now.xx + noise
        m, xm = now.m + a * (g - now.m), (1 - a) * now.xm + a * lam * now.xx
        mg = (1 - a) * lam * now.xm + a * gg
        mm = (1 - a) ** 2 * now.mm + 2 * a * (1 - a) * lam * now.xm + a * a * gg
        u, xu = fresh * g + (1 - fresh) * m, fresh * lam * now.xx + (1 - fresh) * xm
        mu, uu = fresh * mg + (1 - fresh) * mm, fresh**2 * gg + 2 * fresh * (1 - fresh) * mg + (1 - fresh) ** 2 * mm
        v = now.v + DELTA / (DELTA + t) * (g * g + gg - now.v)
        mean, slope, variance = u, 1.0, uu
        if kind == "root":
            slope = 1 / jnp.sqrt(v + 1e-30)
            mean, variance = slope * u, slope * slope * uu
        elif kind == "sign":
            spread = jnp.sqrt(uu + 1e-30)
            mean = erf(u / (spread * jnp.sqrt(2.0)))
            slope = jnp.sqrt(2 / jnp.pi) / spread * jnp.exp(-0.5 * (u / spread) ** 2)
            variance = 1 - mean * mean
        moved = now.xx - 2 * h * slope * xu + h * h * variance
        return Modes(now.x - h * mean, m, moved, xm - h * slope * mu, mm, v), None

    inputs = (jnp.moveaxis(gain, -1, 0), jnp.moveaxis(lr, -1, 0), jnp.arange(gain.shape[-1], dtype=float))
    last = jax.lax.scan(step, start, inputs)[0]
    return excess(last.x, last.xx)


def _constants(spectrum: Spectrum) -> tuple[Array, ...]:
    return tuple(map(jnp.asarray, (spectrum.lam, spectrum.rho, spectrum.multiplicity, spectrum.limit)))


def _unit(spectrum: Spectrum, kind: str, steps: int) -> float:
    """The learning rate that PEAKS count in: 2 / trace, or what a sign needs to come to the optimum within the run."""
    return 2 / spectrum.trace if kind == "linear" else 16 * float(np.sqrt(spectrum.rho.max())) / steps


def final_risks(spectrum: Spectrum, kind: str, age: np.ndarray, steps: int, batch: float, fresh: float) -> np.ndarray:
    """Excess risk at the end [peaks] with the ages asked for [steps]; infinite where a run diverged."""
    lr = _unit(spectrum, kind, steps) * 2.0 ** PEAKS[:, None] * schedule(steps)
    gain = jnp.broadcast_to(gains(jnp.asarray(age))[0], lr.shape)
    risk = np.asarray(run(_constants(spectrum), kind, gain, jnp.asarray(lr), batch, fresh))
    return np.where(np.isfinite(risk) & (risk > 0), risk, np.inf)


def best_path(
    spectrum: Spectrum, kind: str, age: np.ndarray, peak: float, steps: int, batch: float, fresh: float, descents: int
) -> tuple[float, np.ndarray]:
    """Least excess risk and mean ages [steps] of a path free at KNOTS, by descent from ages [steps] and a peak."""
    at, t, s = np.geomspace(1, steps, KNOTS), np.arange(steps), jnp.asarray(schedule(steps))
    unit, constants = _unit(spectrum, kind, steps), _constants(spectrum)
    begin = {"age": jnp.asarray(np.log(np.interp(at, t + 1, np.maximum(age, 0.1)))), "peak": jnp.asarray(peak)}

    def asked(free: Any) -> Array:
        return jnp.exp(jnp.interp(jnp.log(t + 1.0), jnp.log(at), free["age"]))

    def loss(free: Any) -> Array:
        return jnp.log(run(constants, kind, gains(asked(free))[0], unit * 2.0 ** free["peak"] * s, batch, fresh))

    optimizer = optax.adam(0.05)
    descend = jax.jit(jax.value_and_grad(loss))
    free, state, least = begin, optimizer.init(begin), (np.inf, begin)
    for _ in range(descents):
        value, gradient = descend(free)
        if not np.isfinite(value):
            break
        least = min(least, (float(value), free), key=lambda each: each[0])
        change, state = optimizer.update(gradient, state)
        free = optax.apply_updates(free, change)
    return float(np.exp(least[0])), np.asarray(gains(asked(least[1]))[1])


def _lowest(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Where y is least and its value there, by a parabola through the least and its neighbours."""
    i = int(y.argmin())
    if i in (0, len(x) - 1) or not np.isfinite(y[i - 1 : i + 2]).all():
        return float(x[i]), float(y[i])
    c = np.polyfit(x[i - 1 : i + 2] - x[i], y[i - 1 : i + 2], 2)
    at = -c[1] / (2 * c[0])
    return float(x[i] + at), float(np.polyval(c, at))


def draw_figure(study: Study) -> Figure:
    """For each map at the largest batch and length: risk by constant age beside the others, and the best path."""
    names, cells, n = study.parameters["paths"], study.parameters["cells"], len(CONSTANTS)
    figure, axes = canvas(2, len(MAPS), 4.6, 3.6)
    for i, kind in enumerate(MAPS):
        at, (_, noise, batch, steps) = max(enumerate(cells), key=lambda each: (each[1][0] == kind, *each[1][1:]))
        ratio, t = study.arrays["risk"][at] / study.arrays["least"][at], np.arange(steps)
        which = n + 1 + int(ratio[n + 1 :].argmin())
        top, below = axes[0, i], axes[1, i]
        top.plot(CONSTANTS, ratio[:n], marker=".", color="#2171b5", label="constant")
        top.axhline(ratio[n], color="#d62728", label="log time")
        top.axhline(ratio[which], color="#238b45", label="follows the rate")
        label(
            top,
            f"{kind}: {steps:,} steps, batch {batch:g}, noise {noise:g}",
            "mean age [steps]",
            "risk / best path",
            "best",
            "xy",
        )
        below.plot(np.linspace(1, steps, 1001), study.arrays["best_path"][at], color="#08306b", label="best path")
        below.plot(t + 1, t / (DELTA + 1), color="#d62728", ls="--", label="log time")
        below.plot(t + 1, targets(steps)[1][which], color="#238b45", ls=":", label=names[which])
        label(below, "", "step", "mean age [steps]", "best", "xy", ylim=(0.5, steps))
    return figure
