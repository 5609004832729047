"""The values of E that the points do not contradict, whatever the other coefficients are.

Where sizes span little, A N^-alpha with a small exponent takes the place of E, and every E fits about as well.
Resamples stay near the first fit and do not show that; holding E and fitting the rest does.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from danalab.ladder.fit.loss_law import LossLaw
from danalab.ladder.fit.statistics import Interval, scipy

_STEPS = 12
_HALVINGS = 5
_NOTHING = 1e-4
"""Part of the least loss that is too short a way for more than one step."""

Laws = list[LossLaw]


def profile_interval(refit: Callable[[float, Laws], Laws], best: Laws, floor: float, level: float) -> Interval:
    """The interval of E by the likelihood ratio, for residuals with Laplace's distribution: 2 n log(b / b_best).

    Args:
        refit: laws with an E that is held, from the laws at a neighbouring E.
        best: laws with the best E, fitted together.
        floor: the least loss; E is between 0 and this.
    """
    allowed = float(scipy("scipy.stats").chi2.ppf(level, 1))
    n, least = sum(len(law.residuals) for law in best), _spread(best)

    def is_compatible(laws: Laws) -> bool:
        return 2 * n * math.log(_spread(laws) / least) <= allowed

    def farthest(end: float) -> float:
        good, laws = best[0].E, best
        steps = _STEPS if abs(end - good) > _NOTHING * floor else 1
        for E in np.linspace(good, end, steps + 1)[1:]:
            found = refit(float(E), laws)
            if not is_compatible(found):
                return _halved(good, float(E), laws)
            good, laws = float(E), found
        return end

    def _halved(good: float, bad: float, laws: Laws) -> float:
        for _ in range(_HALVINGS):
            middle = (good + bad) / 2
            if is_compatible(refit(middle, laws)):
                good = middle
            else:
                bad = middle
        return good

    return Interval(farthest(0.0), farthest(0.999 * floor), level)


def _spread(laws: Sequence[LossLaw]) -> float:
    """Mean absolute residual."""
    return max(float(np.mean(np.abs(np.concatenate([law.residuals for law in laws])))), 1e-12)
