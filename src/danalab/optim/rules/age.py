"""The memory of a momentum: the mean age of its gradients as a path over the run, and the gains that follow the path.

    m <- m + a (g - m)          A(t) = (1 - a) (1 + A(t-1)),  A(0) = 0,  hence  a = 1 - A(t) / (1 + A(t-1))

One average has any mean age A(t) [steps] that grows by at most one in a step: a gradient's age does. A path is a
function of t = 1, 2, ... and of s = lr / peak_lr, by a name and numbers: "constant(20)", "follow(8, 60, 1, 8)".

Several averages of fixed ages, with weights that change, are the other way to a given mean age (`mixture`).

Source: our own. The logarithmic-time average, a = delta / (delta + t), is A(t) = t / (delta + 1): arXiv 2602.05298.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from danalab.errors import UserError
from danalab.optim.settings import NOT_NEGATIVE, RANGES
from danalab.registry import Registry

AGES: Registry[Callable[..., Any]] = Registry("age")
"""Name -> path(t, s, *numbers). t and s are numbers, or tensors where step counts are on the device, or JAX's arrays:
`least` and `most` take all three. A plugin adds its own: `AGES.add("mine", lambda t, s, peak: ...)`."""


def least(x: Any, y: Any) -> Any:
    """The smaller of numbers, tensors or arrays."""
    return x.clip(max=y) if hasattr(x, "clip") else y.clip(max=x) if hasattr(y, "clip") else min(x, y)


def most(x: Any, y: Any) -> Any:
    """The larger of them."""
    return x.clip(min=y) if hasattr(x, "clip") else y.clip(min=x) if hasattr(y, "clip") else max(x, y)


def constant(t: Any, s: Any, mean: float) -> Any:
    """The plain average of all gradients until its mean age is `mean`, then an exponential one."""
    return least(t / 2, mean)


def log_time(t: Any, s: Any, delta: float) -> Any:
    """Logarithmic time: a = delta / (delta + t)."""
    return t / (delta + 1)


def follow(t: Any, s: Any, delta: float, peak: float, power: float, floor: float) -> Any:
    """Logarithmic time until the age is peak s^power, at least `floor`: it falls with the rate; power < 0: it rises."""
    return least(t / (delta + 1), most(peak * most(s, 1e-3) ** power, floor))


for _path in (constant, log_time, follow):
    AGES.add(_path.__name__, _path)


@dataclass(frozen=True)
class AgePath:
    """A path of ages with its numbers."""

    text: str
    path: Callable[..., Any]
    numbers: tuple[float, ...]

    def step(self, t: Any, s: Any, before: Any) -> Any:
        """A(t), from A(t-1); UserError: the path gives no age."""
        age = self.path(t, s, *self.numbers)
        if isinstance(age, (int, float)) and not 0 <= age < math.inf:
            raise UserError(f"age {self.text} is {age} at step {t}; it must be finite and not negative")
        return least(age, 1 + before)


@functools.cache
def age_path(owner: str, text: Any) -> AgePath:
    """The path that a setting names; UserError: unknown, or numbers that it does not take."""
    named = re.fullmatch(r"\s*([\w.-]+)\s*\(([^()]*)\)\s*", text) if isinstance(text, str) else None
    if named is None:
        raise UserError(f"{owner}: age is {text!r}; it must be a name with numbers, as in constant(20) or log_time(8)")
    path = AGES.get(named[1])
    _, _, *names = inspect.signature(path).parameters
    try:
        numbers = tuple(map(float, filter(None, re.split(r"[,\s]+", named[2].strip()))))
    except ValueError:
        numbers = ()
    if len(numbers) != len(names):
        raise UserError(f"{owner}: age is {text!r}; it must be {named[1]}({', '.join(names)}) with numbers")
    for name, number in zip(names, numbers, strict=True):
        accept, words = RANGES.get(name, NOT_NEGATIVE)
        if not (math.isfinite(number) and accept(number)):
            raise UserError(f"{owner}: age is {text!r}; {name} must be finite and {words}")
    return AgePath(text, path, numbers)


def gain_of(group: Mapping[str, Any], t: Any) -> Any:
    """a of step t of a group with `age`; `ages` are A(t-1) and A(t) of the batch, else those of a constant rate."""
    path = age_path("optimizer", group["age"])
    before, now = group.get("ages") or (path.step(t - 1, 1.0, t - 1), path.step(t, 1.0, t))
    return 1 - now / (1 + before)


def mixture(group: Mapping[str, Any], t: Any, mean: Any) -> tuple[list[Any], list[Any]]:
    """(gains, weights) of the averages of `buffers` in step t, for a mean age as near to `mean` as they allow.

    Their ages are log-spaced, age(i) = shortest r^i, from the first to the last of `buffer_ages`, once t is twice that.
    The weights are those of a binomial distribution, whose mean is exact: with k averages

        sum_i C(k-1, i) p^i (1-p)^(k-1-i) shortest r^i = shortest (1 + p (r - 1))^(k-1)
    """
    (shortest, longest), last = group["buffer_ages"], group["buffers"] - 1

    def ages(t: Any) -> tuple[Any, Any]:
        first = least(t / 2, shortest)
        return first, (least(t / 2, longest) / most(first, 1e-9)) ** (1 / last)

    (first, ratio), (old, old_ratio) = ages(t), ages(t - 1)
    gains = [1 - first * ratio**i / (1 + old * old_ratio**i) for i in range(last + 1)]
    mean = most(least(mean, first * ratio**last), first)
    p = least(((mean / first) ** (1 / last) - 1) / most(ratio - 1, 1e-9), 1.0)
    return gains, [math.comb(last, i) * p**i * (1 - p) ** (last - i) for i in range(last + 1)]
