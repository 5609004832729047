"""The expected loss of an algorithm on a spectrum: exactly, step by step, or as an equation in log time.

The second moments of one eigen-direction, V = (rho, sig, chi) = (E r^2, E y^2, E r y), change in one step by

    V <- V + Omega(t, lam) V + lam Gam(t) 2P(t),      2P = 2 limit + sum_j w_j lam_j rho_j,

exactly, for a fixed spectrum and Gaussian data (Wick calculus): `moment_recursion`, O(modes) per step, is the mean of
infinitely many stochastic runs. `ode` reads the same as dV/dt, which costs a few thousand steps for a million: implicit
Euler with step h in tau = log(1 + t). The 3 x 3 systems of all modes are solved in closed form, and the coupling of the
modes through the loss is rank one (Sherman-Morrison). When its denominator is not positive the noise kernel has norm
one or more: the algorithm diverges, and the risk is reported as infinite from there on.

The same loss is a Volterra equation P(t) = F(t) + int_0^t K(t - s) P(s) ds. For SGD the kernel is explicit. For the
others, freezing the schedules gives a quasi-static kernel norm N: stable below one, noise floor limit / (1 - N).
Source: the moment equations of Ferbach et al. 2025 (arXiv 2505.16098), rederived.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from danalab.errors import UserError
from danalab.theory.algorithms import Algorithm, Rates, stacked
from danalab.theory.curve import Curve, check_times, finite_or_inf, in_float32, in_float64, padded, record
from danalab.theory.problem import Spectrum

Matrix = tuple[tuple[Any, Any, Any], tuple[Any, Any, Any], tuple[Any, Any, Any]]
Vector = tuple[Any, Any, Any]


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
        algorithm: schedules, see `danalab.theory.algorithms`; evaluated at the 0-based step. A list of one
            kind is run side by side and gives risk [n, times].
        steps: horizon [steps].
        batch: samples per step.
        times: ascending integer times to record; default 0, powers of 1.1, `steps`.
    Raises:
        UserError: `steps` or `batch` is not positive, or `times` lie outside the horizon.
    """
    at = check_times(steps, batch, times)
    return Curve.of(at, _for_each(_recursion, spectrum, algorithm, batch, padded(at)))


@in_float64
def ode(
    spectrum: Spectrum,
    algorithm: Algorithm | Sequence[Any],
    horizon: float,
    *,
    batch: float = 1,
    h: float = 1e-2,
) -> Curve:
    """Expected risk of `algorithm` on `spectrum` up to time `horizon`; cost O(modes log(horizon) / h).

    Args:
        spectrum: eigenvalues, initial distances and their multiplicities.
        algorithm: schedules; a list of one kind (say, a sweep of kappa) is run side by side and gives risk [n, times].
        horizon: last time [steps].
        batch: samples per step.
        h: step in log(1 + t); 1e-2 is good to 0.2%, 1e-3 to 0.02%.
    Raises:
        UserError: horizon, batch or h is not positive.
    """
    if not (math.isfinite(horizon) and horizon > 0):
        raise UserError(f"horizon = {horizon}: must be positive and finite")
    if not (batch > 0 and 0 < h < 1):
        raise UserError(f"batch = {batch} and h = {h}: batch must be positive, h between 0 and 1")
    index = np.arange(math.ceil(math.log1p(horizon) / h) + 1)
    return Curve.of(
        np.expm1(h * index), _for_each(_integrate, spectrum, algorithm, batch, padded(index, 1024), h)
    )


def _for_each(
    run: Callable[..., Any], spectrum: Spectrum, algorithm: Algorithm | Sequence[Any], *settings: Any
) -> Any:
    """(risk, momentum) of one algorithm, or of several at once."""
    problem = (spectrum.lam, spectrum.rho, spectrum.multiplicity, spectrum.limit)
    if isinstance(algorithm, Sequence):
        return jax.vmap(lambda one: run(*problem, one, *settings))(stacked(algorithm))
    return run(*problem, algorithm, *settings)


@jax.jit
def _recursion(lam: Any, rho: Any, weight: Any, limit: Any, algorithm: Any, batch: Any, times: Any) -> Any:
    double_risk, observe = _observables(lam, weight, limit)

    def step(state: Vector, t: jax.Array) -> Vector:
        omega, gamma = drift(algorithm.at(t), lam, batch)
        noise = lam * double_risk(state[0])
        moved = (sum(o * v for o, v in zip(row, state, strict=True)) for row in omega)
        return tuple(v + m + g * noise for v, m, g in zip(state, moved, gamma, strict=True))  # pyright: ignore[reportReturnType]

    return record(step, observe, (rho, jnp.zeros_like(rho), jnp.zeros_like(rho)), times)


@jax.jit
def _integrate(
    lam: Any, rho: Any, weight: Any, limit: Any, algorithm: Any, batch: Any, index: Any, h: Any
) -> Any:
    _, observe = _observables(lam, weight, limit)

    def step(state: Vector, n: jax.Array) -> Vector:
        end = jnp.exp((n + 1) * h)
        k = h * end
        omega, gamma = drift(algorithm.at(end - 1), lam, batch)
        matrix: Any = tuple(tuple((i == j) - k * omega[i][j] for j in range(3)) for i in range(3))
        source = tuple(lam * g for g in gamma)
        x = solve3(matrix, tuple(s + k * 2 * limit * b for s, b in zip(state, source, strict=True)))  # pyright: ignore[reportArgumentType]
        y = solve3(matrix, source)  # pyright: ignore[reportArgumentType]
        loss_x, loss_y = jnp.sum(weight * lam * x[0]), jnp.sum(weight * lam * y[0])
        room = 1 - k * loss_y
        common = jnp.where(room > 0, k * loss_x / room, jnp.inf)
        return tuple(a + b * common for a, b in zip(x, y, strict=True))  # pyright: ignore[reportReturnType]

    return record(step, observe, (rho, jnp.zeros_like(rho), jnp.zeros_like(rho)), index)


def _observables(lam: Any, weight: Any, limit: Any) -> tuple[Callable[[Any], Any], Callable[[Vector], Any]]:

    def double_risk(rho: jax.Array) -> jax.Array:
        return 2 * limit + jnp.sum(weight * lam * rho)

    return double_risk, lambda state: (finite_or_inf(double_risk(state[0]) / 2), jnp.sum(weight * state[1]))


def drift(rates: Rates, lam: Any, batch: float) -> tuple[Matrix, Vector]:
    """Omega (entries broadcast over `lam`) and Gam of the exact equations."""
    g1, g2, g3, D = rates
    q = g2 + g1 * g3
    C = 1 + 1 / batch
    keep = 1 - D
    omega = (
        (
            -2 * q * lam + C * q**2 * lam**2,
            g3**2 * keep**2 + 0 * lam,
            -2 * g3 * keep + 2 * q * g3 * keep * lam,
        ),
        (C * g1**2 * lam**2, -2 * D + D**2 + 0 * lam, 2 * g1 * keep * lam),
        (g1 * lam - C * g1 * q * lam**2, -g3 * keep**2 + 0 * lam, -D - keep * (g2 + 2 * g1 * g3) * lam),
    )
    return omega, (q**2 / batch, g1**2 / batch, -g1 * q / batch)


def solve3(matrix: Matrix, vector: Vector) -> Vector:
    """x with `matrix` x = `vector`, entry by entry over any shape (Cramer's rule)."""
    (a, b, c), (d, e, f), (g, h, i) = matrix
    x, y, z = vector
    ei_fh, di_fg, dh_eg = e * i - f * h, d * i - f * g, d * h - e * g
    scale = 1 / (a * ei_fh - b * di_fg + c * dh_eg)
    return (
        scale * (ei_fh * x - (b * i - c * h) * y + (b * f - c * e) * z),
        scale * (-di_fg * x + (a * i - c * g) * y - (a * f - c * d) * z),
        scale * (dh_eg * x - (a * h - b * g) * y + (a * e - b * d) * z),
    )


@in_float64
def kernel_norm(spectrum: Spectrum, algorithm: Algorithm, t: float, batch: float = 1) -> float:
    """Quasi-static kernel norm with the schedules frozen at time t: sum_j w_j lam_j [-Omega_j^-1 lam_j Gam]_1."""
    rates, lam = Rates(*(float(r) for r in algorithm.at(t))), spectrum.lam
    if rates.gamma3 == 0:  # SGD: |K|_1 = (gamma2 / B) sum_j lam_j / (2 - (1 + 1/B) gamma2 lam_j)
        room = 2 - (1 + 1 / batch) * rates.gamma2 * lam
        if (room <= 0).any():
            return float("inf")  # a single mode diverges
        return float(rates.gamma2 / batch * (spectrum.multiplicity @ (lam / room)))
    omega, gamma = drift(rates, lam, batch)
    response = solve3(omega, (-lam * gamma[0], -lam * gamma[1], -lam * gamma[2]))[0]
    return float("inf") if (response < 0).any() else float(spectrum.multiplicity @ (lam * response))


def noise_floor(spectrum: Spectrum, algorithm: Algorithm, t: float = 1e12, batch: float = 1) -> float:
    """Risk at which the noise of the gradients balances the descent: limit / (1 - N(t)); infinite if N >= 1."""
    norm = kernel_norm(spectrum, algorithm, t, batch)
    return spectrum.limit / (1 - norm) if norm < 1 else float("inf")


@in_float32
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

    Gaussian data make two simplifications exact, in the eigenbasis of K at O(batch x modes) a step: the part of the
    target that no feature explains is independent Gaussian noise of variance 2 limit, and the features are independent,
    X_j = sqrt(lam_j) g_j.

    Args:
        spectrum: modes of multiplicity one (a draw, not bins).
        steps, batch, times: as in `moment_recursion`.
        seed: run i uses the stream `fold_in(seed, i)`; the samples of step t depend on the seed and t alone.
    Raises:
        UserError: binned spectrum; steps, batch or runs not positive.
    """
    if not (spectrum.multiplicity == 1).all():
        raise UserError("stochastic runs need one row per mode; a binned spectrum has lost the single modes")
    if runs < 1:
        raise UserError(f"runs = {runs}: at least one run is needed")
    at = check_times(steps, batch, times)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(runs))
    problem = [jnp.asarray(x, jnp.float32) for x in (spectrum.lam, spectrum.rho, spectrum.limit)]
    return Curve.of(at, _runs(*problem, algorithm, keys, padded(at), batch=batch))


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
            return finite_or_inf(limit + 0.5 * jnp.sum(lam * r**2)), jnp.sum(y**2)

        return record(step, observe, (-jnp.sqrt(rho), jnp.zeros_like(rho)), times)

    return jax.vmap(one)(keys)
