"""Double precision where the loss dynamics need it, without switching it on for the whole process."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


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
