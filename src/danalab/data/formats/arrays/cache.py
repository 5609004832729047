"""What was used least recently goes first, once what is kept exceeds a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Values by key within a budget of bytes; threads may share it."""

    def __init__(self, budget: int, size: Callable[[V], int]):
        """`budget` [bytes]; `size(value)` [bytes]. A value that is larger than the budget is never kept."""
        self.budget = budget
        self.bytes = 0
        """What is kept now [bytes]."""
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`, made when it is not kept; either way it is now the one used most recently."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            value = make()
            size = self._size(value)
            if size <= self.budget:
                while self.bytes + size > self.budget:
                    _, oldest = self._values.popitem(last=False)
                    self.bytes -= self._size(oldest)
                self._values[key] = value
                self.bytes += size
            return value

    def keys(self) -> list[K]:
        """What is kept, least recently used first."""
        with self._lock:
            return list(self._values)
