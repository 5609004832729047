"""Resamples of tuned runs in which the learning rate is chosen again.

A ladder tries several learning rates with one seed, takes the best, and repeats it with other seeds. The chosen run is
the luckiest of its trials, and not always the best rate; intervals that keep the choice are too narrow. A resample
draws new noise for every trial, chooses again, and draws the seeds at the rate chosen:

    loss of a trial = L* + k log(lr / lr*)^2 + noise,   k shared by all sizes, noise by the spread over seeds
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from danalab.errors import UserError
from danalab.ladder.fit.curvature import fit_shared_curvature

Resampler = Callable[[np.random.Generator], np.ndarray]
"""Random generator -> final losses of all runs, size by size."""


@dataclass(frozen=True)
class TunedSize:
    """The learning-rate trials of an optimizer at a size, and the seeds at the rate chosen."""

    rates: np.ndarray
    losses: np.ndarray
    """Final loss of each rate's trial [nats a token]."""
    chosen: int
    """Index of the chosen rate."""
    seeds: np.ndarray
    """Final losses at the chosen rate, one a seed; the first is its trial."""


def retuned(sizes: Sequence[TunedSize]) -> Resampler | None:
    """Resampler of the final losses at the tuned rates; None where no size has both several rates and several seeds."""
    spread = [np.log(each.seeds) - np.log(each.seeds).mean() for each in sizes]
    freedom = sum(len(each) - 1 for each in spread)
    if freedom < 1 or all(len(each.rates) < 2 for each in sizes):
        return None
    noise = float(np.sqrt(sum(np.sum(each**2) for each in spread) / freedom))
    excess = _excess_losses(sizes)

    def resample(rng: np.random.Generator) -> np.ndarray:
        drawn = []
        for each, above in zip(sizes, excess, strict=True):
            trials = above + noise * rng.standard_normal(len(above))
            best = int(np.argmin(trials))
            logs = above[best] + noise * rng.standard_normal(len(each.seeds))
            logs[0] = trials[best]
            drawn.append(np.exp(np.log(each.seeds).mean() - above[each.chosen] + logs))
        return np.concatenate(drawn)

    return resample


def _excess_losses(sizes: Sequence[TunedSize]) -> list[np.ndarray]:
    """log(loss / best loss) of each rate, by parabolas of one curvature; as measured where there is no curvature."""
    trials = []
    for each in sizes:
        logs = np.log(each.losses)
        logs[each.chosen] = np.log(each.seeds).mean()
        trials.append((np.log(each.rates), logs))
    try:
        curvature = fit_shared_curvature([(np.exp(x), y) for x, y in trials]).curvature
    except UserError:
        return [y - y.min() for _, y in trials]
    found = []
    for x, y in trials:
        # y = L* + k (x - x*)^2, so y - k x^2 is a line of slope -2 k x*
        slope = float(np.polyfit(x, y - curvature * x**2, 1)[0]) if len(x) > 1 else -2 * curvature * x[0]
        parabola = curvature * (x - np.clip(-slope / (2 * curvature), x.min(), x.max())) ** 2
        found.append(parabola - parabola.min())
    return found
