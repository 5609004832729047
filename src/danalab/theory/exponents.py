"""Which phase a problem is in, how fast each algorithm's loss falls, and the compute-optimal exponents.

Up to constants P = F0 + Fpp + Fac + Kpp, each a power of d and of the effective clock
theta(t) = gamma2 t + (int_0^t sqrt(gamma1 gamma3))^2:

    F0 = d^(-2a + max(0, 1 - 2b)),  Fpp = theta^-x,  Fac = theta^-(1 - 1/2a) / d,  Kpp = gamma2 theta^-y,
    x = (2a + 2b - 1) / 2a,  y = 2 - 1/2a,  gamma2 = d^-max(0, 1 - 2a).

Exponents at fixed compute f = d t come from minimising the largest term over d = f^u: a linear programme in logarithms.
Source: SGD: Paquette et al. 2024 (arXiv 2405.15074). DANA: balance of terms after Ferbach et al. 2025
(arXiv 2505.16098), checked against the integrated loss (bench/theory.py).

From a spectrum to a prediction (`predict`): for least squares on these features with one pass over Gaussian data. For a
language model it is a heuristic: its loss is not quadratic, its features move, its learning rate is annealed.
"""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from danalab.errors import UserError, nearest
from danalab.theory.algorithms import critical_kappa, standard
from danalab.theory.curve import Curve
from danalab.theory.moments import ode
from danalab.theory.problem import Spectrum, binned_spectrum, check_exponents, check_memory, limit_loss, power_sum

Family = Literal["sgd", "dana-constant", "dana-decaying"]
FAMILIES = ("sgd", "dana-constant", "dana-decaying")

IVA_BORDER = 1 - 1 / math.sqrt(2)


def phase(alpha: float, beta: float) -> str:
    """Name of the phase: Ia, Ib, Ic, II, III, IVa or IVb."""
    check_exponents(alpha, beta)
    if alpha > 0.5:
        return "Ia" if beta < 0.5 else "II" if beta < alpha else "III"
    if beta < 0.5:
        return "Ib"
    return "Ic" if alpha < 0.25 else "IVb" if alpha < IVA_BORDER else "IVa"


def _clock(alpha: float, family: Family) -> list[tuple[float, float]]:
    """theta(t) is the largest of d^p t^q over the (p, q) returned."""
    p = -max(0.0, 1 - 2 * alpha)
    plain = (p, 1.0)
    if family == "dana-constant":
        return [plain, (p - 1, 2.0)]
    if family == "sgd" or alpha <= 0.5:
        return [plain]  # below the line kappa = 1 / 2a > 1: the momentum's weight vanishes too fast to matter
    return [plain, (p, 2 - 1 / (2 * alpha))]


def _clock_exponents(alpha: float, beta: float) -> dict[str, tuple[float, float]]:
    """(exponent of d, exponent of 1/theta) of the terms that exist in this phase, apart from F0."""
    terms = {"Fpp": (0.0, (2 * alpha + 2 * beta - 1) / (2 * alpha))}
    if alpha > 0.5 and beta > 0.5:
        terms["Fac"] = (-1.0, 1 - 1 / (2 * alpha))
    if alpha > 0.25:
        terms["Kpp"] = (-max(0.0, 1 - 2 * alpha), 2 - 1 / (2 * alpha))
    return terms


def time_exponents(alpha: float, beta: float, family: Family) -> dict[str, float]:
    """-d log P / d log t of every term of the loss, late (t > d for DANA-constant)."""
    check_exponents(alpha, beta)
    speed = max(q for _, q in _clock(alpha, _checked(family)))
    if family == "dana-constant" and alpha <= 0.5:
        speed = 1.0  # SGD has reached its floor when the momentum would set in
    return {name: power * speed for name, (_, power) in _clock_exponents(alpha, beta).items()}


@dataclass(frozen=True)
class ComputeOptimum:
    """Best loss P ~ f^-loss at compute f = d t, reached with d ~ f^size."""

    loss: float
    size: float


def compute_optimum(alpha: float, beta: float, family: Family) -> ComputeOptimum:
    """Compute-optimal exponents of `family` at (alpha, beta)."""
    check_exponents(alpha, beta)
    clock = _clock(alpha, _checked(family))
    # Each term as a function of u: the least, over the clock's branches, of (d-exponent) u + (t-exponent) (1 - u).
    terms = [[(-2 * alpha + max(0.0, 1 - 2 * beta), 0.0)]]  # F0
    for d, power in _clock_exponents(alpha, beta).values():
        terms.append([(d - power * p, -power * q) for p, q in clock])

    def loss(u: float) -> float:
        return max(min(d * u + t * (1 - u) for d, t in term) for term in terms)

    best = min(_candidates([line for term in terms for line in term]), key=lambda u: (round(loss(u), 12), u))
    return ComputeOptimum(-loss(best), best)


def _candidates(lines: list[tuple[float, float]]) -> list[float]:
    """Where a piecewise linear function made of these lines d u + t (1 - u) can have its minimum on [0, 1]."""
    points = [0.0, 1.0]
    for (d1, t1), (d2, t2) in itertools.combinations(lines, 2):
        slope = (d1 - t1) - (d2 - t2)
        if abs(slope) > 1e-12:
            u = (t2 - t1) / slope
            if 0 < u < 1:
                points.append(u)
    return points


def _checked(family: str) -> Family:
    if family not in FAMILIES:
        raise UserError(f"unknown family '{family}'{nearest(family, FAMILIES)}; known: {', '.join(FAMILIES)}")
    return family  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class Frontier:
    """Lower envelope of one algorithm."""

    flops: np.ndarray
    """Compute f = d (t + 1)."""
    risk: np.ndarray
    """Best risk at each f; infinite where no d covers it."""
    best: np.ndarray
    """Which d reaches it (0 where none)."""
    sizes: np.ndarray
    curves: list[Curve]
    """One curve for each d."""

    def interior(self) -> np.ndarray:
        """Mask of the compute whose best d is neither the smallest nor the largest."""
        return (self.best > self.sizes[0]) & (self.best < self.sizes[-1]) & np.isfinite(self.risk)

    def slope(self, share: float = 1.0) -> float:
        """-d log P / d log f by least squares over the last `share` of the interior."""
        inside = np.flatnonzero(self.interior())
        inside = inside[int(len(inside) * (1 - share)) :]
        if len(inside) < 3:
            raise UserError("the frontier has no interior: take more sizes d, or a wider range of compute")
        return -float(np.polyfit(np.log(self.flops[inside]), np.log(self.risk[inside]), 1)[0])


def frontier(
    alpha: float,
    beta: float,
    name: str,
    sizes: Sequence[int],
    *,
    flops: np.ndarray | None = None,
    h: float = 1e-2,
    per_decade: int = 40,
    ratio: int = 4,
) -> Frontier:
    """Integrate algorithm `name` for every d of `sizes` (v = ratio d) over T = max(1e5, 20 d^2) and take the envelope.

    Args:
        flops: compute at which to evaluate; default 161 points from 10^4 to 20 d_max^3.
        h, per_decade: accuracy, see `ode` and `binned_spectrum`.
    Raises:
        UserError: exponents outside the phases, unknown algorithm, sizes not ascending.
    """
    d = np.asarray(sizes, dtype=np.int64)
    if len(d) < 3 or (np.diff(d) <= 0).any() or d[0] < 2:
        raise UserError("a frontier needs at least three ascending sizes d >= 2")
    spectra = [
        binned_spectrum(alpha, beta, int(n), limit_loss(alpha, beta, ratio * int(n), int(n)), per_decade=per_decade)
        for n in d
    ]
    rows = max(len(s.lam) for s in spectra)
    curves = []
    for n, spectrum in zip(d.tolist(), spectra, strict=True):
        algorithm = standard(name, alpha=alpha, beta=beta, d=n, trace=power_sum(2 * alpha, ratio * n))
        curves.append(ode(_same_length(spectrum, rows), algorithm, max(1e5, 20.0 * n * n), h=h))
    flops = np.geomspace(1e4, 20.0 * float(d[-1]) ** 3, 161) if flops is None else flops
    table = np.stack([_on_compute(c, n, flops) for n, c in zip(d.tolist(), curves, strict=True)])
    best = np.where(np.isfinite(table.min(0)), d[table.argmin(0)], 0)
    return Frontier(flops, table.min(0), best, d, curves)


def _same_length(spectrum: Spectrum, rows: int) -> Spectrum:
    """Pad with modes of multiplicity 0, so that all sizes share one compiled integrator."""
    extra = rows - len(spectrum.lam)
    lam, rho = np.pad(spectrum.lam, (0, extra), mode="edge"), np.pad(spectrum.rho, (0, extra))
    return Spectrum(lam, rho, spectrum.limit, np.pad(spectrum.multiplicity, (0, extra)))


def _on_compute(curve: Curve, d: int, flops: np.ndarray) -> np.ndarray:
    t = flops / d - 1
    covered = (t >= 1) & (t <= curve.t[-1])
    return np.where(covered, curve.at(np.clip(t, 0, None)), np.inf)


MIN_EIGENVALUES = 20


def load_spectrum(path: str | Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Eigenvalues (descending, scaled to lam_1 = 1) and, if the file has them, the squared target coordinates rho.

    Formats: .json (a list, or {"lam": [...], "rho": [...]}), .npy, .npz (keys lam, rho), text with one or two columns.

    UserError: no such file, unknown layout, fewer than 20 eigenvalues, negative or non-finite values.
    """
    path = Path(path)
    if path.exists() and not path.is_file():  # a named pipe would block
        raise UserError(f"{path}: not a regular file")
    try:
        lam, rho = _read(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged file may raise almost anything
        raise UserError(f"{path}: not a spectrum ({error}); give lam (and rho) as json, npy, npz or text") from error
    if lam.ndim != 1 or (rho is not None and rho.shape != lam.shape):
        raise UserError(f"{path}: lam must be one list of eigenvalues, rho a list of the same length")
    values = lam if rho is None else np.concatenate([lam, rho])
    if not np.isfinite(values).all() or (values < 0).any():
        raise UserError(f"{path}: eigenvalues and rho must be finite and not negative")
    order = np.argsort(lam)[::-1]
    lam, rho = lam[order], None if rho is None else rho[order]
    kept = lam > 1e-12 * lam[:1]
    if kept.sum() < MIN_EIGENVALUES:
        raise UserError(f"{path}: {kept.sum()} non-zero eigenvalues; a power law needs at least {MIN_EIGENVALUES}")
    scale = lam[0]
    return lam[kept] / scale, None if rho is None else rho[kept] * scale


def _read(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    if path.suffix == ".json":
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, list):
            return np.asarray(data, float), None
        return np.asarray(data["lam"], float), np.asarray(data["rho"], float) if "rho" in data else None
    if path.suffix in (".npy", ".npz"):
        data = np.load(path, allow_pickle=False)
        if isinstance(data, np.ndarray):
            return data.astype(float), None
        return data["lam"].astype(float), data["rho"].astype(float) if "rho" in data else None
    table = np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=2)
    return table[:, 0], table[:, 1] if table.shape[1] > 1 else None


def power_law(alpha: float) -> tuple[np.ndarray, None]:
    """1000 eigenvalues j^(-2 alpha), in place of a measured spectrum."""
    return np.arange(1, 1001, dtype=float) ** (-2 * alpha), None


def fit_alpha(lam: np.ndarray) -> tuple[float, float, tuple[float, float]]:
    """alpha and R^2 of lam_j ~ j^(-2 alpha), least squares over ranks 5 .. n/2, even in log j; alpha of its two halves.

    The last half of the ranks is left out: the smallest eigenvalues of a finite sample deviate from the law. With one
    power law, the head and the tail of the others have one alpha.
    """
    low, high = min(5, len(lam) // 4), len(lam) // 2
    middle = round(math.sqrt(low * high))

    def between(first: int, last: int) -> tuple[float, float]:
        ranks = np.unique(np.geomspace(first, last, 60).astype(int))
        slope, r2 = _fit(np.log(ranks), np.log(lam[ranks - 1]))
        return -slope / 2, r2

    return *between(low, high), (between(low, middle)[0], between(middle, high)[0])


def fit_beta(lam: np.ndarray, rho: np.ndarray, alpha: float) -> tuple[float, float]:
    """beta and R^2 from the energy left beyond rank j, sum_{i>j} lam_i rho_i ~ j^-(2 alpha + 2 beta - 1)."""
    left = np.cumsum((lam * rho)[::-1])[::-1]
    ranks = np.unique(np.geomspace(min(5, len(lam) // 4), max(len(lam) // 8, 6), 40).astype(int))
    ranks = ranks[left[ranks] > 0]
    if len(ranks) < 3:
        raise UserError("the target has no energy past the first eigenvectors; give beta instead")
    slope, r2 = _fit(np.log(ranks), np.log(left[ranks]))
    return (1 - slope) / 2 - alpha, r2


def _fit(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - slope * x - intercept
    return float(slope), 1 - float(residual.var() / max(y.var(), 1e-300))


@dataclass(frozen=True)
class CurvePrediction:
    """The theory's prediction for a spectrum."""

    alpha: float
    beta: float
    phase: str
    kappa: float
    """1 / (2 alpha): the strongest momentum that is stable at every size."""
    fits: dict[str, float]
    """R^2 of the fitted exponents."""
    windows: tuple[float, ...]
    """alpha of the head and of the tail of the spectrum (empty where alpha was given): equal for one power law."""
    time: dict[str, float]
    """Slope of the leading term, -d log P / d log t, of each family."""
    compute: dict[str, float]
    """Exponent of the compute-optimal loss of each family."""
    curves: dict[str, Curve]
    spectrum: Spectrum

    def speedup(self) -> float:
        """Ratio of the time exponents, DANA-decaying over SGD: 2 - 1 / (2 alpha) above the line, 1 below."""
        return self.time["dana-decaying"] / self.time["sgd"]

    def as_dict(self) -> dict[str, Any]:
        """Everything but the curves, for JSON."""
        own = {name: getattr(self, name) for name in ("alpha", "beta", "phase", "kappa")}
        fitted = {"r2": self.fits, "alpha_by_window": list(self.windows), "time_exponents": self.time}
        return {**own, **fitted, "compute_exponents": self.compute, "speedup_of_the_time_exponent": self.speedup()}


def predict(
    lam: np.ndarray,
    rho: np.ndarray | None = None,
    *,
    alpha: float | None = None,
    beta: float | None = None,
    limit: float = 0.0,
    horizon: float = 1e6,
    batch: int = 1,
) -> CurvePrediction:
    """Exponents, phase and loss curves on the eigenvalues `lam` (descending).

    Args:
        rho: squared coordinates of the target; without them beta must be given and rho_j = j^(-2 beta).
        alpha, beta: given exponents instead of fitted ones.
        limit: irreducible risk.
        horizon: last time of the curves [steps].
    Raises:
        UserError: neither beta nor rho; exponents outside the phases; negative limit; too many eigenvalues for memory.
    """
    check_memory(8.0 * 60 * len(lam), f"a spectrum of {len(lam)} eigenvalues", "give fewer of them")
    fits, windows = {}, ()
    if alpha is None:
        alpha, fits["alpha"], windows = fit_alpha(lam)
    if beta is None:
        if rho is None:
            raise UserError("the spectrum has no rho to fit beta to; give --beta, or a file with lam and rho")
        beta, fits["beta"] = fit_beta(lam, rho, alpha)
    check_exponents(alpha, beta)
    weights = np.arange(1, len(lam) + 1, dtype=float) ** (-2 * beta) if rho is None else rho
    spectrum = Spectrum(lam, weights, limit)
    curves = {}
    for family in FAMILIES:
        algorithm = standard(family, alpha=alpha, beta=beta, d=len(lam), trace=spectrum.trace, batch=batch)
        curves[family] = ode(spectrum, algorithm, horizon, batch=batch)
    slopes = {family: _leading_exponent(alpha, beta, family) for family in FAMILIES}
    frontiers = {family: compute_optimum(alpha, beta, family).loss for family in FAMILIES}
    kappa = critical_kappa(alpha)
    return CurvePrediction(alpha, beta, phase(alpha, beta), kappa, fits, windows, slopes, frontiers, curves, spectrum)


def _leading_exponent(alpha: float, beta: float, family: Family) -> float:
    """The slope of a large model over a long range: that of the slower term without a power of 1/d."""
    exponents = time_exponents(alpha, beta, family)
    return min(exponents[name] for name in ("Fpp", "Kpp") if name in exponents)
