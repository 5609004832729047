"""Scores with standard errors: means over problems, pass@k, centred accuracy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A mean over problems."""

    mean: float
    error: float | None
    """Standard error of the mean, the problems taken as a sample; None for a single one."""
    count: int
    """Number of problems."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Score":
        """The mean of at least one value."""
        count, mean = len(values), math.fsum(values) / len(values)
        if count == 1:
            return cls(mean, None, 1)
        variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
        return cls(mean, math.sqrt(variance / count), count)

    def centred(self, baseline: float) -> "Score":
        """(mean - baseline) / (1 - baseline): 0 for random answers, 1 for right ones."""
        scale = 1 / (1 - baseline)
        error = None if self.error is None else self.error * scale
        return Score((self.mean - baseline) * scale, error, self.count)

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.error is None else f" +- {self.error:.4f}")


def mean_score(scores: Sequence[Score]) -> Score:
    """The mean over tasks, with the error of their problems; which tasks there are is not taken as chance."""
    n = len(scores)
    errors = [score.error for score in scores if score.error is not None]
    error = math.sqrt(math.fsum(each**2 for each in errors)) / n if len(errors) == n else None
    return Score(math.fsum(score.mean for score in scores) / n, error, n)


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Probability that one of k samples is right, without bias: 1 - C(n - c, k) / C(n, k).

    Args: samples: n >= k. right: c.
    Raises:
        ValueError: k > n, or c > n.
    Source: Chen et al. 2021, arXiv 2107.03374, eq. 1.
    """
    if not 1 <= k <= samples or not 0 <= right <= samples:
        raise ValueError(f"pass@{k} of {right} right ones among {samples}")
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)
