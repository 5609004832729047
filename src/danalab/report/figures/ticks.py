"""Readable ticks and limits of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogFormatterSciNotation,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

if TYPE_CHECKING:
    from matplotlib.axis import Axis


def short(number: float) -> str:
    """A short count: 45k, 1.5M, 2B."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def fraction(number: float) -> str:
    """A short factor: 4, 1, 1/16; 0.3 where it is no unit fraction."""
    parts = round(1 / number)
    return f"1/{parts}" if parts > 1 and math.isclose(number * parts, 1) else short(number)


def counts(axis: Axis, values: Iterable[float] = (), words: Callable[[float], str] = short) -> None:
    """Ticks of a logarithmic axis of counts: at `values` where they stand apart, else at 1, 2 and 5."""
    at = sorted(set(values))
    low, high = axis.get_view_interval()
    fits = bool(at) and apart(at, math.log(high / low), 0.08)
    axis.set_major_locator(FixedLocator(at if fits else round_numbers(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_locator(NullLocator())


def powers(axis: Axis) -> None:
    """Ticks of a logarithmic axis of large or small numbers, as a x 10^b."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(FixedLocator(round_numbers(low, high, 4)))
    axis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(99, 99)))
    axis.set_minor_locator(NullLocator())


def plain(axis: Axis, ticks: int = 6) -> None:
    """Ticks of a logarithmic axis that spans less than a decade or so, as plain numbers."""
    low, high = axis.get_view_interval()
    wide = high > 8 * low > 0
    even = MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10])
    axis.set_major_locator(FixedLocator(round_numbers(low, high, ticks)) if wide else even)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())


def percent(axis: Axis, signed: bool = False) -> None:
    """Ticks of an axis of shares."""

    def words(value: float, _: Any) -> str:
        number = f"{100 * value:{'+' if signed else ''}.4g}"
        return ("0" if float(number) == 0 else number.replace("-", "\N{MINUS SIGN}")) + "%"

    axis.set_major_formatter(FuncFormatter(words))


def round_numbers(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between `low` and `high`, evenly enough spread on a logarithmic axis, `most` at most."""
    if not 0 < low < high:
        return [low]
    if high < 2 * low:  # less than an octave: even numbers are as good
        even = [float(value) for value in MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)]
        if len(inside := [value for value in even if low <= value <= high]) >= 2:
            return inside
    whole = math.log(high / low)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [round(digit * 10.0**power, 12) for power in decades for digit in digits]
        found = [value for value in found if low <= value <= high]
        if len(found) <= most and apart(found, whole, 0.75 / most):
            return found
    return found[:: -(-len(found) // (most + 2))]


def apart(values: Sequence[float], whole: float, share: float) -> bool:
    """Whether no two of these are nearer than a `share` of the `whole`, on a logarithmic axis."""
    return len(values) < 2 or bool(min(np.diff(np.log(values))) >= share * whole)


def widen(axis: Axis, values: Sequence[float], share: float = 0.06, least: float = 1.25) -> None:
    """Limits of a logarithmic axis around these values, with a margin even for a single value."""
    low, high = min(values), max(values)
    margin = max((high / low) ** share, least if high < 1.5 * low else 1.0)
    axis.axes.set_xlim(low / margin, high * margin)
