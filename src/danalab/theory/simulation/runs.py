"""Stochastic runs of the rotation-equivariant algorithms (SGD, SGD-M, DANA, AdEMAMix-like), O(batch x modes) a step.

Gaussian data make two simplifications exact: the part of the target that no feature explains is independent Gaussian
noise of variance 2 limit, and in the eigenbasis of K the features are independent, X_j = sqrt(lam_j) g_j.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from danalab.errors import UserError
from danalab.theory.curve import Curve
from danalab.theory.dynamics.algorithms import Algorithm
from danalab.theory.problem.model import Spectrum
from danalab.theory.recording import check_times, padded, record


def simulate(
    spectrum: Spectrum,
    algorithm: Algorithm,
    steps: int,
    *,
    batch: int = 1,
    runs: int = 1,
    seed: int = 0,
    times: npt.ArrayLike | None = None,
) -> Curve:
    """Population risk along `runs` stochastic runs of `algorithm`; risk and momentum have shape [runs, times].

    Args:
        spectrum: modes of multiplicity one (a draw, not bins).
        steps, batch, times: as in `moment_recursion`.
        seed: run i uses the stream `fold_in(seed, i)`; the samples of step t depend on the seed and t alone.
    Raises:
        UserError: binned spectrum; steps, batch or runs not positive.
    """
    if not (spectrum.multiplicity == 1).all():
        raise UserError("stochastic runs need one row a mode; a binned spectrum has lost the single modes")
    if runs < 1:
        raise UserError(f"runs = {runs}: at least one run is needed")
    at = check_times(steps, batch, times)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(runs))
    problem = [jnp.asarray(x, jnp.float32) for x in (spectrum.lam, spectrum.rho, spectrum.limit)]
    risk, momentum = _runs(*problem, algorithm, keys, padded(at), batch=batch)
    return Curve(at.astype(float), np.asarray(risk)[:, : len(at)], np.asarray(momentum)[:, : len(at)])


@partial(jax.jit, static_argnames="batch")
def _runs(lam: Any, rho: Any, limit: Any, algorithm: Any, keys: Any, times: Any, *, batch: int) -> Any:
    scale, noise = jnp.sqrt(lam), jnp.sqrt(2 * limit)

    def one(key: jax.Array) -> Any:
        def step(state: tuple[jax.Array, jax.Array], t: jax.Array) -> tuple[jax.Array, jax.Array]:
            r, y = state
            sample = jax.random.normal(jax.random.fold_in(key, t), (batch, len(lam) + 1))
            X = scale * sample[:, :-1]
            error = X @ r - noise * sample[:, -1]
            gradient = error @ X / batch
            g1, g2, g3, D = algorithm.at(t)
            y = (1 - D) * y + g1 * gradient
            return r - g2 * gradient - g3 * y, y

        def observe(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            r, y = state
            risk = limit + 0.5 * jnp.sum(lam * r**2)
            return jnp.where(jnp.isfinite(risk), risk, jnp.inf), jnp.sum(y**2)

        return record(step, observe, (-jnp.sqrt(rho), jnp.zeros_like(rho)), times)[1]

    return jax.vmap(one)(keys)
