"""From a spectrum to a prediction (`predict`), and its figure.

It holds for least squares on these features with one pass over Gaussian data. For a language model it is a heuristic:
its loss is not quadratic, its features move, its learning rate is annealed.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.errors import UserError
from danalab.theory.algorithms import critical_kappa, standard
from danalab.theory.curve import Curve
from danalab.theory.exponents import FAMILIES, compute_optimum, phase, time_exponents
from danalab.theory.moments import ode
from danalab.theory.problem import Spectrum, check_exponents, check_memory
from danalab.theory.studies import PredictFlags
from danalab.theory.study import LABELS, Study, canvas, label


def compute(p: PredictFlags) -> Study:
    """The prediction, and the comparison with measured curves if any, as a study."""
    if p.spectrum is None and p.alpha is None:
        raise UserError("give --spectrum FILE, or --alpha and --beta")
    lam, rho = power_law(p.alpha or 0.0) if p.spectrum is None else load_spectrum(p.spectrum)
    prediction = predict(lam, rho, alpha=p.alpha, beta=p.beta, limit=p.limit, horizon=p.horizon, batch=p.batch)
    times = np.geomspace(1, prediction.curves["sgd"].t[-1], 200)
    arrays = {"lam": prediction.spectrum.lam, "rho": prediction.spectrum.rho, "t": times}
    arrays.update({f"risk_{f}": prediction.curves[f].at(times) for f in FAMILIES})
    settings = {**p.settings(), "spectrum": p.spectrum and str(p.spectrum)}
    return Study("predict", arrays, settings, prediction.as_dict(), draw_figure)


def draw_figure(study: Study) -> Figure:
    """Spectrum and predicted curves."""
    f = study.findings
    figure, axes = canvas(1, 2, 5.2, 4.3)
    spectrum, curves = axes[0][:2]
    lam = study.arrays["lam"]
    rank = np.arange(1, len(lam) + 1)
    spectrum.plot(rank, lam, color="#2171b5", marker="o", ms=3, lw=1, label="eigenvalues")
    middle = len(lam) // 4
    law = lam[middle] * (rank / rank[middle]) ** (-2.0 * f["alpha"])
    windows = f["alpha_by_window"]
    spread = f" ({windows[0]:.2f} at the head, {windows[1]:.2f} in the tail)" if windows else ""
    spectrum.plot(rank, law, color="black", lw=1, ls=":", label=f"j^(-2 alpha), alpha = {f['alpha']:.2f}{spread}")
    title, floor = f"spectrum: phase {f['phase']}, beta = {f['beta']:.3f}", 0.05 * float(lam[-1])
    label(spectrum, title, "rank j", "eigenvalue / largest", "lower left", ylim=(floor, None))
    for family in FAMILIES:
        name = f"{LABELS[family]}: t^-{f['time_exponents'][family]:.2f}"
        curves.plot(study.arrays["t"], study.arrays[f"risk_{family}"], color=optimizer_color(family), label=name)
    title = f"predicted on this spectrum, kappa = {f['kappa']:.2f}"
    label(curves, title, "steps t", "population risk P (least squares)", "lower left")
    return figure


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
    limit: float = PredictFlags.limit,
    horizon: float = PredictFlags.horizon,
    batch: int = PredictFlags.batch,
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
    # The slope of a large model over a long range: that of the slower term without a power of 1/d.
    exponents = {family: time_exponents(alpha, beta, family) for family in FAMILIES}
    slopes = {family: min(own[name] for name in ("Fpp", "Kpp") if name in own) for family, own in exponents.items()}
    frontiers = {family: compute_optimum(alpha, beta, family).loss for family in FAMILIES}
    kappa = critical_kappa(alpha)
    return CurvePrediction(alpha, beta, phase(alpha, beta), kappa, fits, windows, slopes, frontiers, curves, spectrum)
