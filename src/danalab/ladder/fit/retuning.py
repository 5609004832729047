"""Resamples of tuned runs in which the learning rate is chosen again.

A ladder tries several learning rates with one seed, takes the best, and repeats it with other seeds. The chosen run is
the luckiest of its trials, and not always the best rate; intervals that keep the choice are too narrow. A resample
draws new noise for every trial, chooses again, and draws the seeds at the rate chosen:

    loss of a trial = L* + k log(lr / lr*)^2 + noise,   k shared by all sizes, noise by the spread over seeds
"""

import math
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


@dataclass(frozen=True)
class Choice:
    """What the choice of the learning rate adds to the uncertainty of one size."""

    shifts: np.ndarray
    """Of the logarithm of the mean loss; their variance is the one that is added [draws]."""
    freedom: int
    """Degrees of freedom of the noise between seeds, by which it was chosen."""


class Retuning:
    """How an optimizer's tuned losses would vary if its learning rates were tuned again."""

    def __init__(self, sizes: Sequence[TunedSize], noise: float, freedom: int):
        """Args:
        sizes: of all learning rates of the optimizer.
        noise: standard deviation of the logarithm of the loss over seeds, with `freedom` degrees of freedom.
        """
        self._sizes, self._noise, self._freedom = sizes, noise, freedom
        self._excess = _excess_losses(sizes)

    def losses(self, rng: np.random.Generator) -> np.ndarray:
        """Final losses of all runs of a ladder that was tuned again, size by size."""
        drawn = []
        for each, above in zip(self._sizes, self._excess, strict=True):
            trials = self._trials(above, 1, rng)[0]
            best = int(np.argmin(trials))
            logs = above[best] + self._noise * rng.standard_normal(len(each.seeds))
            logs[0] = trials[best]
            drawn.append(np.exp(np.log(each.seeds).mean() - above[each.chosen] + logs))
        return np.concatenate(drawn)

    def choice(self, size: int, n: int, rng: np.random.Generator) -> Choice:
        """The size of this index, tuned n times: the variance of its mean beyond that of seeds at one rate.

        Another rate may be chosen, but the first seed is the best of its trials, which vary less than one trial.
        """
        above, seeds = self._excess[size], len(self._sizes[size].seeds)
        trials = self._trials(above, n, rng)
        others = (seeds - 1) * above[trials.argmin(axis=1)]
        others += math.sqrt(seeds - 1) * self._noise * rng.standard_normal(n)
        means = (trials.min(axis=1) + others) / seeds
        total = float(np.var(means, ddof=1))
        added = max(total - self._noise**2 / seeds, 0.0)
        return Choice((means - means.mean()) * math.sqrt(added / total) if total else means * 0, self._freedom)

    def _trials(self, above: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
        return above + self._noise * rng.standard_normal((n, len(above)))


def retuned(sizes: Sequence[TunedSize]) -> Retuning | None:
    """The tuned sizes of an optimizer, to tune again; None where no size has several rates, or none several seeds."""
    spread = [np.log(each.seeds) - np.log(each.seeds).mean() for each in sizes]
    freedom = sum(len(each) - 1 for each in spread)
    if freedom < 1 or all(len(each.rates) < 2 for each in sizes):
        return None
    return Retuning(sizes, float(np.sqrt(sum(np.sum(each**2) for each in spread) / freedom)), freedom)


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
