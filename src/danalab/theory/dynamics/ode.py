"""The loss curve as a differential equation in log time: a million steps for the price of a few thousand.

Log-time implicit Euler with step h in tau = log(1 + t): the 3 x 3 systems of all modes are solved in closed form, the
coupling of the modes through the loss is rank one (Sherman-Morrison). When its denominator is not positive the noise
kernel has norm one or more: the algorithm diverges, and the risk is reported as infinite from there on.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from danalab.errors import UserError
from danalab.theory.curve import Curve
from danalab.theory.dynamics.algorithms import Algorithm, stacked
from danalab.theory.dynamics.drift import approximate_drift, drift, solve3
from danalab.theory.precision import in_float64
from danalab.theory.problem.model import Spectrum
from danalab.theory.recording import padded, record

Renormalise = Literal["none", "adam", "rmsprop", "risk"]
_RENORMALISE = ("none", "adam", "rmsprop", "risk")


@in_float64
def ode(
    spectrum: Spectrum,
    algorithm: Algorithm | Sequence[Any],
    horizon: float,
    *,
    batch: float = 1,
    h: float = 1e-2,
    approximate: bool = False,
    renormalise: Renormalise = "none",
) -> Curve:
    """Expected risk of `algorithm` on `spectrum` up to time `horizon`; cost O(modes log(horizon) / h).

    Args:
        spectrum: eigenvalues, initial distances and their multiplicities.
        algorithm: schedules; a list of one kind (say, a sweep of kappa) is run side by side and gives risk [n, times].
        horizon: last time [steps].
        batch: samples a step.
        h: step in log(1 + t); 1e-2 is good to 0.2%, 1e-3 to 0.02%.
        approximate: the published leading-order equations in place of the exact ones.
        renormalise: what is divided by sqrt(2P), as adaptive optimizers do: "adam" gamma3, "rmsprop" gamma1, "risk"
            gamma2 and gamma3.
    Raises:
        UserError: horizon, batch or h is not positive; unknown `renormalise`.
    """
    if not (math.isfinite(horizon) and horizon > 0):
        raise UserError(f"horizon = {horizon}: must be positive and finite")
    if not (batch > 0 and 0 < h < 1):
        raise UserError(f"batch = {batch} and h = {h}: batch must be positive, h between 0 and 1")
    if renormalise not in _RENORMALISE:
        raise UserError(f"unknown renormalise '{renormalise}'; known: {', '.join(_RENORMALISE)}")
    count = math.ceil(math.log1p(horizon) / h)
    index = padded(np.arange(count + 1), 1024)
    problem = (spectrum.lam, spectrum.rho, spectrum.multiplicity, spectrum.limit)
    if isinstance(algorithm, Sequence):
        run = jax.vmap(
            lambda one: _integrate(*problem, one, batch, h, index, approximate=approximate, renormalise=renormalise)
        )
        risk, momentum = run(stacked(algorithm))
    else:
        risk, momentum = _integrate(
            *problem, algorithm, batch, h, index, approximate=approximate, renormalise=renormalise
        )
    t = np.expm1(h * np.arange(count + 1))
    return Curve(t, np.asarray(risk)[..., : count + 1], np.asarray(momentum)[..., : count + 1])


@partial(jax.jit, static_argnames=("approximate", "renormalise"))
def _integrate(
    lam: Any,
    rho: Any,
    weight: Any,
    limit: Any,
    algorithm: Any,
    batch: Any,
    h: Any,
    index: Any,
    *,
    approximate: bool,
    renormalise: str,
) -> Any:
    equations = approximate_drift if approximate else drift

    def double_risk(rho: jax.Array) -> jax.Array:
        return 2 * limit + jnp.sum(weight * lam * rho)

    def step(state: tuple[jax.Array, ...], n: jax.Array) -> tuple[jax.Array, ...]:
        end = jnp.exp((n + 1) * h)
        k = h * end
        g1, g2, g3, D = algorithm.at(end - 1)
        if renormalise != "none":
            size = jnp.sqrt(double_risk(state[0]) + 1e-10)
            g1 = g1 / size if renormalise == "rmsprop" else g1
            g2 = g2 / size if renormalise == "risk" else g2
            g3 = g3 / size if renormalise in ("adam", "risk") else g3
        omega, gamma = equations(type(algorithm.at(0.0))(g1, g2, g3, D), lam, batch)
        matrix: Any = tuple(tuple((i == j) - k * omega[i][j] for j in range(3)) for i in range(3))
        source = tuple(lam * g for g in gamma)
        x = solve3(matrix, tuple(s + k * 2 * limit * b for s, b in zip(state, source, strict=True)))  # pyright: ignore[reportArgumentType]
        y = solve3(matrix, source)  # pyright: ignore[reportArgumentType]
        loss_x, loss_y = jnp.sum(weight * lam * x[0]), jnp.sum(weight * lam * y[0])
        room = 1 - k * loss_y
        common = jnp.where(room > 0, k * loss_x / room, jnp.inf)
        return tuple(a + b * common for a, b in zip(x, y, strict=True))

    def observe(state: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        risk = double_risk(state[0]) / 2
        return jnp.where(jnp.isfinite(risk), risk, jnp.inf), jnp.sum(weight * state[1])

    zeros = jnp.zeros_like(rho)
    return record(step, observe, (rho, zeros, zeros), index)[1]
