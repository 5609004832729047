"""FLOPs of the optimizers' own matrix products, by arithmetic alone: the column `flops` of the catalogue.

A rule gives the FLOPs of the first `steps` steps for one parameter; a product [m, k] [k, n] is 2 m k n. That is the
count of torch's FlopCounterMode, for orthogonalisation in float32 unless `ns_dtype` says 16 bits. Our symmetric
products count what is on and below the diagonal from 256 rows on, as
`danalab.optim.optimizers.matrix.symmetric` tells that counter.
Decompositions (eigh, QR, triangular solves) and elementwise work do not count.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from danalab.optim.settings import Dion2Settings, KLSOAPSettings, KronSettings, NewtonSchulz

Rule = Callable[[str, Sequence[int], Mapping[str, Any], int], float]
"""(kind, shape, settings, steps) -> FLOPs; the kinds are those of `danalab.optim.optimizers.kinds`."""


def none(kind: str, shape: Sequence[int], settings: Mapping[str, Any], steps: int) -> float:
    """Of an elementwise optimizer."""
    return 0


WIDE = 1.5
"""Columns per row from which an orthogonalisation is cheaper on A = X X^T than on X."""
RESTART, RESTART_POLAR = 5, 4
"""Largest number of steps before A is computed from X again: in Newton-Schulz, and in Polar Express, whose steps are
steeper. Rounding errors of A grow by the squares of their slopes at zero."""


HALVED = 256
"""Rows from which symmetric products are computed once; smaller ones are faster in full, on CPUs up to 384."""


def symmetric_entries(rows: int) -> int:
    """FLOPs of a symmetric product [rows, k] [k, rows] per k."""
    return rows * (rows + 1) if rows >= HALVED else 2 * rows * rows


def newton_schulz(rows: int, columns: int, steps: int, restart: int = RESTART) -> int:
    """The products of an orthogonalisation; `restart` 0: all steps are on X, as in 16 bits.

    A step on X has A, A A, and the product with X. Up to `restart` steps on A have A, then A A, A P, P A P and Q P
    (`danalab.optim.optimizers.matrix.newton_schulz`), and in the end Q X.
    """
    short, long = sorted((rows, columns))
    symmetric, whole = symmetric_entries(short), 2 * short * short * long
    if not restart or long < WIDE * short:
        return steps * (symmetric * (long + short) + whole)
    parts = [min(restart, steps - first) for first in range(0, steps, restart)]
    return sum(symmetric * (long + (4 * part - 3) * short) + whole for part in parts)


def library_newton_schulz(rows: int, columns: int, steps: int) -> int:
    """As the library pytorch-optimizer computes it: A = X X^T, A A, and the product with X of each step in full."""
    short, long = sorted((rows, columns))
    return steps * 2 * short * short * (2 * long + short)


def orthogonalised(kind: str, shape: Sequence[int], settings: Mapping[str, Any], steps: int) -> float:
    """Of Muon and its relatives: each matrix, those of stacked experts one by one."""
    count, rows, columns = _matrices(kind, shape)
    return steps * count * _orthogonalisation(rows, columns, settings)


def _orthogonalisation(rows: int, columns: int, settings: Mapping[str, Any]) -> int:
    restart = RESTART if settings.get("ns_method", NewtonSchulz.ns_method) == "newton-schulz" else RESTART_POLAR
    restart = 0 if "16" in str(settings.get("ns_dtype")) else restart
    return newton_schulz(rows, columns, int(settings.get("ns_steps", NewtonSchulz.ns_steps)), restart)


def orthogonalised_single(kind: str, shape: Sequence[int], settings: Mapping[str, Any], steps: int) -> float:
    """Of the library's Muons, to which stacked experts are not matrices."""
    count, rows, columns = _matrices(kind, shape) if kind == "matrix" else (0, 0, 0)
    return steps * count * library_newton_schulz(rows, columns, int(settings["ns_steps"]))


def dion2(kind: str, shape: Sequence[int], settings: Mapping[str, Any], steps: int) -> float:
    """As `orthogonalised`, of a part of the shorter side."""
    count, rows, columns = _matrices(kind, shape)
    short, long = sorted((rows, columns))
    part = math.ceil(settings.get("fraction", Dion2Settings.fraction) * short)
    return steps * count * _orthogonalisation(part, long, settings)


def mars(kind: str, shape: Sequence[int], settings: Mapping[str, Any], steps: int) -> float:
    """With `mars_type` shampoo five steps of Newton-Schulz for tensors [first dimension, the rest]."""
    if settings["mars_type"] != "shampoo" or len(shape) < 2:
        return 0
    return steps * library_newton_schulz(shape[0], math.prod(shape[1:]), 5)


def adafactor(kind: str, shape: Sequence[int], settings: Mapping[str, Any], steps: int) -> float:
    """The second moment as a product of a column and a row."""
    return steps * 2 * math.prod(shape) if len(shape) > 1 else 0


def soap(kind: str, shape: Sequence[int], settings: Mapping[str, Any], steps: int) -> float:
    """A factor and three changes of basis for each side of every tensor; the first step only sets up the factors."""
    largest = settings["max_precondition_dim"]
    if len(shape) > 1 and settings["merge_dims"]:
        shape = _merged(shape, largest)
    sides = [side for side in shape if side <= largest and (len(shape) > 1 or settings["precondition_1d"])]
    new_bases = (steps - 1) // settings["precondition_frequency"]
    factors = steps * sum(side for side in sides if side > 1)  # of a side of 1 it is a dot product
    changes = 3 * (steps - 1) * sum(sides)
    return 2 * math.prod(shape) * (factors + changes) + new_bases * 2 * sum(side**3 for side in sides)


def kl_soap(kind: str, shape: Sequence[int], settings: Mapping[str, Any], steps: int) -> float:
    """Factors, their halves and two changes of basis; a new basis is S Q, and turns the first moment."""
    count, rows, columns = _matrices(kind, shape)
    both = 2 * rows * columns * (rows + columns)
    o = _orthogonalisation(rows, columns, settings) if settings.get("orthogonalise") else 0
    turns = (steps - 1) // settings.get("precondition_frequency", KLSOAPSettings.precondition_frequency)
    return count * ((steps - 1) * o + both * (4 * steps - 3) + turns * (2 * both + 2 * (rows**3 + columns**3)))


def kron(kind: str, shape: Sequence[int], settings: Mapping[str, Any], steps: int) -> float:
    """Q^T Q applied in every step; a fit has A, its products and B's, two norms and the triangular updates."""
    count, rows, columns = _matrices(kind, shape)
    both = 2 * rows * columns * (rows + columns)
    fit = 3 * both + 4 * (rows**2 + columns**2) + 2 * (rows**3 + columns**3)
    return count * (steps * 2 * both + _fits(steps, settings.get("flat_start", KronSettings.flat_start)) * fit)


def fit_interval(t: int, flat_start: int) -> int:
    """Steps between two fits of PSGD-Kron at step t."""
    return round(1 / min(1.0, max(0.03, math.exp(-(t - flat_start) / 1000))))


@cache
def _fits(steps: int, flat_start: int) -> int:
    """Fits in the first steps; from flat_start + 3,500 on every 33rd step has one."""
    last = min(steps, max(0, flat_start) + 3600)
    return sum(t % fit_interval(t, flat_start) == 0 for t in range(1, last + 1)) + steps // 33 - last // 33


def _matrices(kind: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """(number, rows, columns) of a parameter's matrices; none where its kind has another rule."""
    if kind == "experts":
        return math.prod(shape[:-2]), shape[-2], shape[-1]
    return (1, shape[0], math.prod(shape[1:])) if kind == "matrix" else (0, 0, 0)


def _merged(shape: Sequence[int], largest: int) -> list[int]:
    """The shape with neighbouring dimensions joined up to a size, as the library pytorch-optimizer does."""
    merged, product = [], 1
    for side in shape:
        if product * side > largest:
            merged.append(product)
            product = 1
        product *= side
    return [*merged, product]
