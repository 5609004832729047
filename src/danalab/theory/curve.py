"""A loss curve in the theory's units."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from danalab.errors import UserError


@dataclass(frozen=True)
class Curve:
    """Risk against steps; leading axes of `risk` and `momentum`, if any, are runs or sweeps."""

    t: np.ndarray
    """Steps taken before the measurement."""
    risk: np.ndarray
    """Expected P = MSE / 2; infinite once the dynamics have diverged."""
    momentum: np.ndarray
    """|y|^2, the squared norm of the momentum."""

    def at(self, times: npt.ArrayLike) -> np.ndarray:
        """Risk at other times, linear in log(1 + t) between the recorded ones."""
        return _interpolate(self.t, self.risk, np.asarray(times, float))

    def momentum_at(self, times: npt.ArrayLike) -> np.ndarray:
        """|y|^2 at other times, interpolated like the risk."""
        return _interpolate(self.t, self.momentum, np.asarray(times, float))

    def slope(self, low: float, high: float, subtract: float = 0.0) -> float:
        """-d log P / d log t, least squares over [low, high]."""
        return local_slope(self.t, self.risk - subtract, low, high)


def _interpolate(t: np.ndarray, values: np.ndarray, times: np.ndarray) -> np.ndarray:
    flat = values.reshape(-1, values.shape[-1])
    rows = [np.interp(np.log1p(times), np.log1p(t), row) for row in flat]
    return np.stack(rows).reshape((*values.shape[:-1], *times.shape))


def local_slope(t: np.ndarray, values: np.ndarray, low: float, high: float, samples: int = 60) -> float:
    """-d log values / d log t by least squares on points that are even in log t over [low, high]."""
    if not t[0] <= low < high <= t[-1] * 1.0001:
        raise UserError(f"the curve covers t = {t[0]:g} to {t[-1]:g}, the slope was asked over {low:g} to {high:g}")
    at = np.geomspace(low, high, samples)
    y = np.interp(np.log1p(at), np.log1p(t), values)
    if not ((y > 0).all() and np.isfinite(y).all()):
        raise UserError(f"no slope over {low:g} to {high:g}: the curve is not positive and finite there")
    return -float(np.polyfit(np.log(at), np.log(y), 1)[0])
