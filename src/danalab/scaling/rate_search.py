"""The next learning rate of a search: by factors of 2 until the best lies inside, then between."""

import math
from collections.abc import Mapping


def next_rate(tried: Mapping[float, float], *, refine: bool = False) -> float | None:
    """The next rate: beyond the outermost where that is best, at the distance of its neighbour.

    `tried`: rate -> final loss, two or more. With `refine`, where the best lies inside, the geometric mean of it and
    its better neighbour; otherwise None, as where all diverged.
    """
    if not tried or min(tried.values()) == math.inf:
        return None
    best, neighbour, is_outermost = _best_pair(tried)
    if is_outermost:
        return rounded(best**2 / neighbour)
    between = rounded(math.sqrt(best * neighbour))
    return between if refine and between not in tried else None


def next_exponent(tried: Mapping[float, float]) -> float:
    """The next rate by the rule of `next_rate` with `refine`, as the exponent of a spacing: 0, 1 or -1, and so on.

    `tried`: exponent -> final loss. Where all diverged, one below the least.
    """
    if not tried:
        return 0.0
    if min(tried.values()) == math.inf:
        return min(tried) - 1
    if len(tried) == 1:
        return max(tried) + 1
    best, neighbour, is_outermost = _best_pair(tried)
    return 2 * best - neighbour if is_outermost else (best + neighbour) / 2


def _best_pair(tried: Mapping[float, float]) -> tuple[float, float, bool]:
    """The best, its better neighbour, whether the best is outermost."""
    known = sorted(tried)
    best = min(range(len(known)), key=lambda i: tried[known[i]])
    beside = [known[i] for i in (best - 1, best + 1) if 0 <= i < len(known)]
    return known[best], min(beside, key=tried.__getitem__), len(beside) == 1


def rounded(rate: float) -> float:
    """Four significant digits: short in names of runs."""
    return float(f"{rate:.4g}")
