"""Balanced assignment of work to ranks."""

from collections.abc import Sequence


def owners(costs: Sequence[float], ranks: int) -> list[int]:
    """Rank that owns each item: heaviest items first, each to the rank with the smallest load so far.

    The largest load exceeds the mean by less than one item; equal costs are assigned in turn. Deterministic.
    """
    loads = [0.0] * ranks
    found = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min(range(ranks), key=lambda r: (loads[r], r))
        found[i] = rank
        loads[rank] += costs[i]
    return found
