"""A bound of the memory that a block of a test may ask for."""

import contextlib
import tracemalloc
from collections.abc import Iterator


@contextlib.contextmanager
def little_memory(limit: int = 1 << 24) -> Iterator[None]:
    """Fail where Python and NumPy ask for more than `limit` bytes at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()
