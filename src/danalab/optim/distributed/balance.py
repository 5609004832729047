"""Who does what: shares out work among ranks so that the heaviest load is as light as a simple rule can make it."""

from __future__ import annotations

from collections.abc import Sequence


def owners(costs: Sequence[float], ranks: int) -> list[int]:
    """Rank that owns each item: the heaviest first, each to the rank that has least so far.

    The heaviest load exceeds the mean by less than one item; equal costs are dealt in turn. Every rank that computes
    this finds the same.
    """
    loads = [0.0] * ranks
    found = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min(range(ranks), key=lambda r: (loads[r], r))
        found[i] = rank
        loads[rank] += costs[i]
    return found
