"""The tau estimator of Dana-Star: its mean against the activity, and its distribution in a mixture of experts.

    tau <- (1 - a) tau + a |u| / (|u| + sqrt(v)),      u active with probability P

Its limit is P E[|u| / (|u| + sqrt(P E u^2)) | active]: P / (1 + sqrt(P)) for gradients of one size, else less.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy.integrate import quad
from scipy.special import k0

from danalab.colors import ink, shades
from danalab.errors import UserError, nearest
from danalab.optimizer_facts import DELTA
from danalab.theory.curve import in_float32, padded, record
from danalab.theory.problem import model_of
from danalab.theory.races import moe
from danalab.theory.study import Study, canvas, label
from danalab.theory_studies import TauFlags

KINDS = ("sign", "gauss", "product")
"""Distributions of an active gradient: +-1, N(0, 1), or a product of two N(0, 1) (a linear model at batch 1)."""
ACTIVITIES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
_COLORS = {"sign": "#d62728", "gauss": "#ff7f0e", "product": "#9467bd"}
_WHAT = {"sign": "gradients of one size", "gauss": "Gaussian gradients", "product": "product of Gaussians"}


def compute(p: TauFlags) -> Study:
    """tau of synthetic gradients for seven activities, and of Dana-Star-MK4 in a MoE run at doubling times."""
    if p.steps < 16:
        raise UserError(f"steps = {p.steps}: at least 16 are needed, tau is read at four halves of them too")
    arrays = {"activity": np.asarray(ACTIVITIES)}
    findings = {}
    for kind in KINDS:
        arrays[f"measured_{kind}"] = measure_tau(
            ACTIVITIES, kind, steps=p.synthetic_steps, coordinates=200, seed=p.seed
        )
        arrays[f"limit_{kind}"] = np.asarray([tau_limit(activity, kind) for activity in ACTIVITIES])
        ratio = arrays[f"measured_{kind}"] / arrays[f"limit_{kind}"]
        findings[f"{_WHAT[kind]}: largest deviation from the limit"] = float(np.abs(ratio - 1).max())
    times = p.steps // 2 ** np.arange(4, -1, -1)
    shared = {name: getattr(p, name) for name in ("experts", "zeta", "batch", "steps")}
    result = moe(model_of(p), kappas=(p.kappa,), seeds=1, times=times, **shared)
    arrays.update(times=times, tau=result.tau[0, :, 0], expert_activity=result.activity)
    findings["slope of log mean tau on log P over the experts"] = result.tau_slope(0)
    return Study("tau", arrays, p.settings(), findings, draw_figure)


def draw_figure(study: Study) -> Figure:
    """tau against activity; experts of the run; distribution with both tails stretched."""
    a, p = study.arrays, study.parameters
    figure, (mean, experts, spread) = canvas(3)
    for kind in KINDS:
        mean.plot(
            a["activity"], a[f"limit_{kind}"], color=_COLORS[kind], lw=1.4, label=f"{_WHAT[kind]}: limit"
        )
        mean.plot(a["activity"], a[f"measured_{kind}"], color=_COLORS[kind], ls="", marker="o", ms=5)
    label(mean, "synthetic gradients (dots: measured)", "activity P", "tau", "upper left")
    colors = shades(len(a["times"]))
    P = a["expert_activity"]
    for i, t in enumerate(a["times"]):
        experts.plot(P, a["tau"][i].mean(-1), color=colors[i], marker="o", ms=3, lw=1, label=f"t = {t:,}")
        values, height = pooled_cdf(a["tau"][i])
        spread.plot(np.maximum(values, 1e-6), height, color=colors[i], lw=1.4, label=f"t = {t:,}")
    experts.plot(P, P / (1 + np.sqrt(P)), color=ink(), lw=1, ls=":", label="P / (1 + sqrt P)")
    title = f"Dana-Star-MK4, {p['experts']} experts, kappa = {p['kappa']:g}"
    label(experts, title, "activity P_i of the expert", "mean tau of the expert", "upper left")
    ticks = [0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999]
    spread.set(yscale="logit", ylim=(5e-4, 1 - 5e-4))
    spread.set_yticks(ticks, [f"{x:g}" for x in ticks])
    label(spread, "all coordinates of all experts", "tau", "share of coordinates at or below", log="x")
    return figure


def tau_limit(activity: float, kind: str = "sign") -> float:
    """The limit of tau for gradients of `kind` that are active with probability `activity`."""
    _check(activity, kind)
    root = math.sqrt(activity)
    if kind == "sign":
        return activity / (1 + root)

    def share(u: float) -> float:
        density = (
            math.sqrt(2 / math.pi) * math.exp(-(u**2) / 2) if kind == "gauss" else 2 * float(k0(u)) / math.pi
        )
        return u / (u + root) * density

    return activity * sum(quad(share, a, b, limit=200)[0] for a, b in ((0.0, 1.0), (1.0, 40.0)))


@in_float32
def measure_tau(
    activities: Sequence[float],
    kind: str = "sign",
    *,
    steps: int = TauFlags.synthetic_steps,
    coordinates: int = 1000,
    seed: int = 0,
) -> np.ndarray:
    """Mean of tau over `coordinates` independent coordinates after `steps` steps, one value per activity."""
    for p in activities:
        _check(p, kind)
    if steps < 1 or coordinates < 1:
        raise UserError(f"steps = {steps}, coordinates = {coordinates}: both must be positive")
    p = jnp.asarray(activities, jnp.float32)[:, None]
    tau = _run(p, jax.random.key(seed), padded([steps]), kind=kind, coordinates=coordinates)
    return np.asarray(tau)[0].mean(-1)


def _check(activity: float, kind: str) -> None:
    if kind not in KINDS:
        raise UserError(f"unknown kind '{kind}'{nearest(kind, KINDS)}; known: {', '.join(KINDS)}")
    if not 0 < activity <= 1:
        raise UserError(f"activity = {activity:g}: a probability in (0, 1] is needed")


@partial(jax.jit, static_argnames=("kind", "coordinates"))
def _run(p: Any, key: Any, times: Any, *, kind: str, coordinates: int) -> Any:
    shape = (len(p), coordinates)

    def step(state: tuple[jax.Array, jax.Array], t: jax.Array) -> tuple[jax.Array, jax.Array]:
        v, tau = state
        there, size, other = jax.random.split(jax.random.fold_in(key, t), 3)
        u = jnp.ones(shape) if kind == "sign" else jax.random.normal(size, shape)
        if kind == "product":
            u = u * jax.random.normal(other, shape)
        u = jnp.where(jax.random.uniform(there, shape) < p, jnp.abs(u), 0.0)
        gain = DELTA / (DELTA + t + 1)
        v = (1 - gain) * v + gain * u**2
        return v, (1 - gain) * tau + gain * u / (u + jnp.sqrt(v) + 1e-8)

    return record(step, lambda s: s[1], (jnp.zeros(shape), jnp.zeros(shape)), times)


def pooled_cdf(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distribution function of a uniformly chosen coordinate of a uniformly chosen expert: all values, and shares up to
    each. `values` [experts, coordinates] are ascending along the coordinates.
    """
    grid = np.unique(values)
    height = np.arange(1, values.shape[1] + 1) / values.shape[1]
    return grid, np.mean([np.interp(grid, row, height, left=0.0, right=1.0) for row in values], axis=0)
