"""The compute-optimal frontier: loss curves for many d, their lower envelope against compute f = d (t + 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from danalab.errors import UserError
from danalab.theory.curve import Curve
from danalab.theory.dynamics.algorithms import standard
from danalab.theory.dynamics.ode import ode
from danalab.theory.problem.equivalents import limit_loss
from danalab.theory.problem.model import Spectrum
from danalab.theory.problem.spectra import binned_spectrum
from danalab.theory.problem.sums import power_sum


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
    return Spectrum(
        np.pad(spectrum.lam, (0, extra), mode="edge"),
        np.pad(spectrum.rho, (0, extra)),
        spectrum.limit,
        np.pad(spectrum.multiplicity, (0, extra)),
    )


def _on_compute(curve: Curve, d: int, flops: np.ndarray) -> np.ndarray:
    t = flops / d - 1
    covered = (t >= 1) & (t <= curve.t[-1])
    return np.where(covered, curve.at(np.clip(t, 0, None)), np.inf)
