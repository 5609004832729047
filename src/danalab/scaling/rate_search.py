"""The next learning rate of a search: by factors of 2 until the best lies inside, then between."""

import math
from collections.abc import Mapping


def next_exponent(tried: Mapping[float, float]) -> float:
    """The next rate as the exponent of a spacing: 0, 1 or -1, beyond the outermost where that is best, at the distance
    of its neighbour; otherwise midway between the best and its better neighbour.

    `tried`: exponent -> final loss. Where all diverged, one below the least.
    """
    if not tried:
        return 0.0
    if min(tried.values()) == math.inf:
        return min(tried) - 1
    if len(tried) == 1:
        return max(tried) + 1
    known = sorted(tried)
    best = min(range(len(known)), key=lambda i: tried[known[i]])
    beside = [known[i] for i in (best - 1, best + 1) if 0 <= i < len(known)]
    neighbour = min(beside, key=tried.__getitem__)
    return 2 * known[best] - neighbour if len(beside) == 1 else (known[best] + neighbour) / 2


def rounded(rate: float) -> float:
    """Four significant digits: short in names of runs."""
    return float(f"{rate:.4g}")
