"""Advantages of a group of answers to one question: reward minus the group's mean, optionally over its deviation."""

import statistics
from collections.abc import Sequence

EPSILON = 1e-6


def group_advantages(rewards: Sequence[float], *, divide_by_std: bool = False) -> list[float]:
    """r - mean(r), or (r - mean(r)) / (std(r) + 1e-6) with the sample deviation.

    Equal rewards give exactly 0, whatever rounding says: such a group teaches nothing.
    """
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    scale = statistics.stdev(rewards) + EPSILON if divide_by_std else 1.0
    return [(reward - mean) / scale for reward in rewards]
