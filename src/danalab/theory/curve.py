"""Loss curves in the theory's units, and the time loops that make them: inside XLA, observed at chosen times only."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from danalab.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Curve:
    """Risk against steps; leading axes of `risk` and `momentum`, if any, are runs or sweeps."""

    t: np.ndarray
    """Steps taken before the measurement."""
    risk: np.ndarray
    """Expected P = MSE / 2; infinite once the dynamics have diverged."""
    momentum: np.ndarray
    """|y|^2, the squared norm of the momentum."""

    @classmethod
    def of(cls, t: np.ndarray, seen: tuple[Any, Any]) -> "Curve":
        """(risk, momentum) as recorded at `t` and at the repeats that `padded` added."""
        risk, momentum = (np.asarray(values)[..., : len(t)] for values in seen)
        return cls(t.astype(float), risk, momentum)

    def at(self, times: npt.ArrayLike) -> np.ndarray:
        """Risk at other times, linear in log(1 + t) between the recorded ones."""
        return self._interpolate(self.risk, times)

    def momentum_at(self, times: npt.ArrayLike) -> np.ndarray:
        """|y|^2 at other times, interpolated like the risk."""
        return self._interpolate(self.momentum, times)

    def _interpolate(self, values: np.ndarray, times: npt.ArrayLike) -> np.ndarray:
        at, t = np.log1p(np.asarray(times, float)), np.log1p(self.t)
        return np.apply_along_axis(lambda row: np.interp(at, t, row), -1, values)

    def slope(self, low: float, high: float, subtract: float = 0.0) -> float:
        """-d log P / d log t, least squares on 60 points that are even in log t over [low, high].

        UserError: the window is outside the curve, or the risk is not positive and finite in it.
        """
        if not self.t[0] <= low < high <= self.t[-1] * 1.0001:
            raise UserError(
                f"no slope over {low:g} to {high:g}: the curve covers t = {self.t[0]:g} to {self.t[-1]:g}"
            )
        times = np.geomspace(low, high, 60)
        y = self._interpolate(self.risk - subtract, times)
        if not ((y > 0).all() and np.isfinite(y).all()):
            raise UserError(f"no slope over {low:g} to {high:g}: the curve is not positive and finite there")
        return -float(np.polyfit(np.log(times), np.log(y), 1)[0])


def record(
    step: Callable[[Any, jax.Array], Any], observe: Callable[[Any], Any], state: Any, times: jax.Array
) -> Any:
    """`observe(state)` after 0-based steps 0..times[k]-1, stacked over k (times ascending).

    The trip count of the inner loop is a run-time value: a longer horizon costs no new compilation.
    """

    def advance(carry: tuple[Any, jax.Array], stop: jax.Array) -> tuple[tuple[Any, jax.Array], Any]:
        inner, now = carry
        inner = jax.lax.fori_loop(now, stop, lambda t, s: step(s, t), inner)
        return (inner, stop), observe(inner)

    return jax.lax.scan(advance, (state, jnp.zeros((), times.dtype)), times)[1]


def finite_or_inf(risk: jax.Array) -> jax.Array:
    """A diverged risk is infinite, not NaN."""
    return jnp.where(jnp.isfinite(risk), risk, jnp.inf)


def geometric_times(steps: int, ratio: float = 1.1) -> np.ndarray:
    """{0, floor(ratio^k), steps}: evaluation times that are even on a logarithmic axis."""
    if steps < 1:
        raise UserError(f"steps = {steps}: at least one step is needed")
    powers = ratio ** np.arange(1, math.ceil(math.log(max(steps, 2)) / math.log(ratio)))
    return np.unique(np.concatenate([[0], np.floor(powers).astype(np.int64), [steps]]).clip(max=steps))


def check_times(steps: int, batch: int, times: npt.ArrayLike | None) -> np.ndarray:
    """The times to record; default `geometric_times`."""
    if batch < 1:
        raise UserError(f"batch = {batch}: at least one sample per step is needed")
    at = geometric_times(steps)
    if times is not None:
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


def enable_x64(on: bool = True) -> Any:
    """Context manager in which JAX computes in float64, or in float32."""
    # Older releases (the last ones for Python 3.10) keep it under jax.experimental.
    state = getattr(jax, "enable_x64", None)
    if state is None:
        from jax import experimental

        return experimental.enable_x64(on)  # pyright: ignore[reportAttributeAccessIssue]
    return state(on)


@contextlib.contextmanager
def own_settings(*, x64: bool) -> Iterator[None]:
    """JAX as the theory needs it, whatever the caller or the environment chose; that is left as it was."""
    try:
        jax.devices()
    except RuntimeError as error:  # by $JAX_PLATFORMS
        raise UserError(f"JAX has no device here: {str(error).splitlines()[0]}") from error
    with (
        enable_x64(x64),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.transfer_guard("allow"),
        jax.debug_nans(False),  # what diverges is drawn
        jax.debug_infs(False),
        jax.disable_jit(False),  # loops of a hundred thousand steps must be compiled
    ):
        yield


def _with_settings(function: Callable[P, R], *, x64: bool) -> Callable[P, R]:
    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with own_settings(x64=x64):
            return function(*args, **kwargs)

    return wrapped


in_float64 = functools.partial(_with_settings, x64=True)
in_float32 = functools.partial(_with_settings, x64=False)
"""Run a function in that precision."""
