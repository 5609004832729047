"""Work that succeeds on all ranks or fails on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from danalab.train.parallel.world import World

T = TypeVar("T")


def run_on_all_ranks(world: World, work: Callable[[], T]) -> list[T]:
    """Run `work` on all ranks; returns the results of all, in order of ranks. Collective.

    Raises:
        Exception: that of the first rank that failed, on all ranks.
    """
    if world.size == 1:
        return [work()]
    result: tuple[T | None, Exception | None]
    try:
        result = (work(), None)
    except Exception as error:
        result = (None, _portable(error, world.rank))
    found = world.gather(result)
    for _, error in found:
        if error is not None:
            raise error
    return [value for value, _ in found]


def _portable(error: Exception, rank: int) -> Exception:
    """The error in a picklable form that names its rank (the error's own `rank` if it has one)."""
    rank = getattr(error, "rank", rank)
    if isinstance(error, OSError):
        return OSError(error.errno, f"{error.strerror or error} (rank {rank})", error.filename)
    return RuntimeError(f"{type(error).__name__}: {error} (rank {rank})")
