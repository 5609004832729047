"""The expected loss of every step, exactly: the unit-step recursion of the second moments.

No large-d limit and no small-step limit: for a fixed spectrum and Gaussian data this is what the mean of infinitely
many stochastic runs would be. Cost O(modes) per step.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from danalab.theory.curve import Curve
from danalab.theory.dynamics.algorithms import Algorithm, stacked
from danalab.theory.problem.model import Spectrum
from danalab.theory.recording import check_times, in_float64, padded, record


@in_float64
def moment_recursion(
    spectrum: Spectrum,
    algorithm: Algorithm | Sequence[Any],
    steps: int,
    *,
    batch: int = 1,
    times: npt.ArrayLike | None = None,
) -> Curve:
    """Expected risk before step t of `algorithm` on `spectrum`.

    Args:
        spectrum: eigenvalues and initial distances, e.g. `draw(model, seed).spectrum`.
        algorithm: schedules, see `danalab.theory.dynamics.algorithms`; evaluated at the 0-based step. A list of one
            kind is run side by side and gives risk [n, times].
        steps: horizon [steps].
        batch: samples per step.
        times: ascending integer times to record; default 0, powers of 1.1, `steps`.
    Raises:
        UserError: `steps` or `batch` is not positive, or `times` lie outside the horizon.
    """
    at = check_times(steps, batch, times)
    problem = (spectrum.lam, spectrum.rho, spectrum.multiplicity, spectrum.limit)
    if isinstance(algorithm, Sequence):
        risk, momentum = _sweep(*problem, stacked(algorithm), batch, padded(at))
    else:
        risk, momentum = _run(*problem, algorithm, batch, padded(at))
    return Curve(at.astype(float), np.asarray(risk)[..., : len(at)], np.asarray(momentum)[..., : len(at)])


@jax.jit
def _run(lam: Any, rho: Any, weight: Any, limit: Any, algorithm: Any, batch: Any, times: Any) -> Any:
    def double_risk(rho: jax.Array) -> jax.Array:
        return 2 * limit + jnp.sum(weight * lam * rho)

    def step(state: tuple[jax.Array, ...], t: jax.Array) -> tuple[jax.Array, ...]:
        rho, sig, chi = state
        g1, g2, g3, D = algorithm.at(t)
        q = g2 + g1 * g3
        keep = 1 - D
        noise = (1 + 1 / batch) * lam**2 * rho + lam * double_risk(rho) / batch
        return (
            rho
            - 2 * q * lam * rho
            + q**2 * noise
            + g3**2 * keep**2 * sig
            - 2 * g3 * keep * chi
            + 2 * q * g3 * keep * lam * chi,
            keep**2 * sig + g1**2 * noise + 2 * keep * g1 * lam * chi,
            keep * chi
            + g1 * lam * rho
            - q * (keep * lam * chi + g1 * noise)
            - g3 * keep * (keep * sig + g1 * lam * chi),
        )

    def observe(state: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        risk = double_risk(state[0]) / 2
        return jnp.where(jnp.isfinite(risk), risk, jnp.inf), jnp.sum(weight * state[1])

    zeros = jnp.zeros_like(rho)
    return record(step, observe, (rho, zeros, zeros), times)[1]


_sweep = jax.jit(jax.vmap(_run, in_axes=(None, None, None, None, 0, None, None)))
