"""Time loops that run inside XLA, observed at chosen times only; float64 where they need it, never for the process."""

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from danalab.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


def record(
    step: Callable[[Any, jax.Array], Any], observe: Callable[[Any], Any], state: Any, times: jax.Array
) -> tuple[Any, Any]:
    """`state` after 0-based steps 0..times[k]-1, seen through `observe`, for every k (times ascending).

    The trip count of the inner loop is a run-time value: a longer horizon costs no new compilation.
    """

    def advance(carry: tuple[Any, jax.Array], stop: jax.Array) -> tuple[tuple[Any, jax.Array], Any]:
        inner, now = carry
        inner = jax.lax.fori_loop(now, stop, lambda t, s: step(s, t), inner)
        return (inner, stop), observe(inner)

    (state, _), seen = jax.lax.scan(advance, (state, jnp.zeros((), times.dtype)), times)
    return state, seen


def geometric_times(steps: int, ratio: float = 1.1) -> np.ndarray:
    """{0, floor(ratio^k), steps}: evaluation times that are even on a logarithmic axis."""
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    powers = ratio ** np.arange(1, math.ceil(math.log(max(steps, 2)) / math.log(ratio)))
    return np.unique(np.concatenate([[0], np.floor(powers).astype(np.int64), [steps]]).clip(max=steps))


def check_times(steps: int, batch: int, times: npt.ArrayLike | None) -> np.ndarray:
    """The times to record; default `geometric_times`."""
    if batch < 1:
        raise UserError(f"batch = {batch}: at least one sample a step is needed")
    if steps < 1:
        raise UserError(f"steps = {steps}: at least one step is needed")
    if times is None:
        return geometric_times(steps)
    at = np.asarray(times, dtype=np.int64)
    if at.ndim != 1 or not len(at) or (np.diff(at) < 0).any() or at[0] < 0 or at[-1] > steps:
        raise UserError(f"times must be ascending and lie in 0..{steps}")
    return at


def padded(times: npt.ArrayLike, multiple: int = 64) -> jax.Array:
    """Repeat the last time up to a length that `multiple` divides, so that few lengths are ever compiled.

    The repeats cost nothing: no step lies between them.
    """
    array = np.asarray(times, dtype=np.int32)
    return jnp.asarray(np.pad(array, (0, -len(array) % multiple), mode="edge"))


def enable_x64() -> Any:
    """Context manager in which JAX computes in float64."""
    # Older releases (the last ones for Python 3.10) keep it under jax.experimental.
    state = getattr(jax, "enable_x64", None)
    if state is None:
        from jax import experimental

        return experimental.enable_x64()  # pyright: ignore[reportAttributeAccessIssue]
    return state(True)


def in_float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with float64 enabled; the caller's setting is left as it was."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with enable_x64():
            return function(*args, **kwargs)

    return wrapped
