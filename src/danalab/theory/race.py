"""Coordinate-wise optimizers (ADana and family, Adam, AdEMAMix) and SGD against each other on random features.

Every optimizer, for every value of its hyper-parameters, sees the same samples. With m > 1 experts a sample belongs to
one of them (MoE-PLRF): column i of the parameters gets a gradient with probability P_i = 1 - (1 - p_i)^B only.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from danalab.errors import UserError
from danalab.optim.optax import dana_step, zero_moments
from danalab.optimizer_facts import DELTA, KAPPA
from danalab.theory.algorithms import between_half_lives
from danalab.theory.curve import finite_or_inf, in_float32, padded, record
from danalab.theory.problem import Draw

DOF = 3
"""Degrees of freedom of the label noise, Student's t."""


class UpdateRule(NamedTuple):
    """One optimizer: `init(shape)` gives its state, `step(g, state, t, **settings)` the step and the new state."""

    init: Callable[[tuple[int, ...]], Any]
    step: Callable[..., tuple[jax.Array, Any]]
    settings: dict[str, float]


def _adam(
    g: jax.Array, state: Any, t: Any, *, lr: Any, beta1: Any, beta2: Any, eps: Any
) -> tuple[jax.Array, Any]:
    m, v = beta1 * state[0] + (1 - beta1) * g, beta2 * state[1] + (1 - beta2) * g**2
    return lr * (m / (1 - beta1**t)) / (jnp.sqrt(v / (1 - beta2**t)) + eps), (m, v)


def _ademamix(
    g: jax.Array,
    state: Any,
    t: Any,
    *,
    lr: Any,
    beta1: Any,
    beta2: Any,
    eps: Any,
    delta: Any,
    kappa: Any,
    horizon: Any,
) -> tuple[jax.Array, Any]:
    fast, slow, v = state
    share = jnp.minimum(t / horizon, 1.0)
    beta3 = between_half_lives(share, beta1, 1 - delta / horizon)
    fast, slow = beta1 * fast + (1 - beta1) * g, beta3 * slow + (1 - beta3) * g
    v = beta2 * v + (1 - beta2) * g**2
    mixed = fast / (1 - beta1**t) + share * horizon ** (1 - kappa) * slow
    return lr * mixed / (jnp.sqrt(v / (1 - beta2**t)) + eps), (fast, slow, v)


def _dana(g: jax.Array, state: Any, t: Any, *, lr: Any, **settings: Any) -> tuple[jax.Array, Any]:
    step, state = dana_step(g, state, t, **settings)
    return lr * step, state


def _zeros(n: int) -> Callable[[tuple[int, ...]], Any]:
    return lambda shape: tuple(jnp.zeros(shape, jnp.float32) for _ in range(n))


_LOG_TIME = {"lr": 0.003, "delta": DELTA, "kappa": KAPPA, "eps": 1e-8}
RULES = {
    "sgd": UpdateRule(_zeros(0), lambda g, state, t, *, lr: (lr * g, state), {"lr": 0.5}),
    "adam": UpdateRule(_zeros(2), _adam, {"lr": 0.003, "beta1": 0.99, "beta2": 0.999, "eps": 1e-8}),
    "ademamix": UpdateRule(_zeros(3), _ademamix, {**_LOG_TIME, "beta1": 0.9, "beta2": 0.999, "horizon": 1e4}),
}
for _name in ("adana", "dana-mk4", "dana-star", "dana-star-mk4"):
    _moments = partial(zero_moments, dtype=jnp.float32, with_tau="star" in _name)
    _clip = 2.0 if _name.endswith("mk4") else np.inf
    RULES[_name] = UpdateRule(_moments, _dana, {**_LOG_TIME, "gamma3": 1.0, "clipsnr": _clip})


Racer = tuple[str, Mapping[str, Any]]
"""A name in `RULES`, and settings; a setting may be a sequence, all of one contender equally long."""


def zipf(experts: int, zeta: float) -> tuple[float, ...]:
    """Probabilities p_i proportional to i^-zeta, i = 1..experts."""
    if experts < 1:
        raise UserError(f"experts = {experts}: at least one is needed")
    weight = np.arange(1, experts + 1, dtype=float) ** -zeta
    return tuple((weight / weight.sum()).tolist())


@in_float32
def race(
    problem: Draw,
    contenders: Mapping[str, Racer],
    times: np.ndarray,
    *,
    batch: int,
    probabilities: Sequence[float] = (1.0,),
    noise: float = 0.0,
    seed: int = 0,
    ranks: np.ndarray | None = None,
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """Run all contenders from theta = 0 on one stream of samples.

    Args:
        times: ascending step counts at which to measure.
        batch: samples per step.
        probabilities: of the experts.
        noise: scale of the label noise, Student's t with `DOF` degrees of freedom.
        ranks: 0-based order statistics of tau over the d coordinates to record, where a contender has tau.
    Returns:
        Risk [times, settings, experts] of each, and its order statistics of tau [..., ranks] or None.
    """
    if batch < 1 or not noise >= 0:
        raise UserError(f"batch = {batch} must be at least 1, and noise = {noise:g} not negative")
    settings = {}
    for name, (rule, own) in contenders.items():
        arrays = [
            np.atleast_1d(np.asarray(value, np.float32))
            for value in ({**RULES[rule].settings, **own}).values()
        ]
        settings[name] = dict(zip(RULES[rule].settings, np.broadcast_arrays(*arrays), strict=True))
        for key in {"lr", "delta", "clipsnr"} & settings[name].keys():
            if not (settings[name][key] > 0).all():
                raise UserError(f"{key} = {settings[name][key].min():g}: must be positive")
    seen = _race(
        jnp.asarray(problem.root, jnp.float32),
        jnp.asarray(problem.optimum, jnp.float32),
        problem.spectrum.limit,
        jnp.log(jnp.asarray(probabilities, jnp.float32)),
        noise,
        settings,
        jax.random.key(seed),
        padded(times),
        None if ranks is None else jnp.asarray(ranks),
        rules=tuple((name, rule) for name, (rule, _) in contenders.items()),
        batch=batch,
        noisy=noise > 0,
    )
    n = len(times)
    return {
        name: (np.asarray(risk)[:n], None if tau is None else np.asarray(tau)[:n])
        for name, (risk, tau) in seen.items()
    }


@partial(jax.jit, static_argnames=("rules", "batch", "noisy"))
def _race(
    root: Any,
    optimum: Any,
    limit: Any,
    log_p: Any,
    noise: Any,
    settings: Any,
    key: Any,
    times: Any,
    ranks: Any,
    *,
    rules: tuple[tuple[str, str], ...],
    batch: int,
    noisy: bool,
) -> Any:
    experts, d = len(log_p), len(optimum)

    def gradients(theta: jax.Array, X: jax.Array, y: jax.Array, owner: jax.Array) -> jax.Array:
        # owner [B, m] is one-hot; the mean is over all samples, so that a rare expert rarely has a gradient.
        error = jnp.sum((X @ theta.T) * owner, axis=1) - y
        return (owner * error[:, None]).T @ X / batch

    def step(state: Any, t: jax.Array) -> Any:
        which, features, rest, heavy = jax.random.split(jax.random.fold_in(key, t), 4)
        X = jax.random.normal(features, (batch, d)) @ root
        y = X @ optimum + jnp.sqrt(2 * limit) * jax.random.normal(rest, (batch,))
        if noisy:
            g = jax.random.normal(heavy, (batch, DOF + 1))
            y = y + noise * g[:, 0] / jnp.sqrt(jnp.mean(g[:, 1:] ** 2, axis=1))
        owner = jnp.ones((batch, 1))
        if experts > 1:
            owner = jax.nn.one_hot(jax.random.categorical(which, log_p, shape=(batch,)), experts)
        new = {}
        for name, rule in rules:

            def one(theta: Any, inner: Any, chosen: Any, *, apply: Any = RULES[rule].step) -> Any:
                move, inner = apply(gradients(theta, X, y, owner), inner, t + 1.0, **chosen)
                return theta - move, inner

            new[name] = jax.vmap(one)(*state[name], settings[name])  # pyright: ignore[reportCallIssue]
        return new

    def observe(state: Any) -> Any:
        out = {}
        for name, rule in rules:
            theta, inner = state[name]
            excess = 0.5 * jnp.sum(((theta - optimum) @ root) ** 2, axis=-1)
            tau = jnp.sort(inner.tau, axis=-1)[..., ranks] if ranks is not None and "star" in rule else None
            out[name] = (finite_or_inf(limit + excess), tau)
        return out

    start = {}
    for name, rule in rules:
        shape = (len(settings[name]["lr"]), experts, d)
        start[name] = (jnp.zeros(shape, jnp.float32), RULES[rule].init(shape))
    return record(step, observe, start, times)
