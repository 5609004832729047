"""The order of n items, epoch after epoch: a keyed permutation of each epoch, never stored whole."""

from functools import lru_cache

import numpy as np

from danalab.data.order.permutation import Permutation

_BLOCK = 4096  # positions computed at a time: step by step would cost more than copying the tokens


class EndlessOrder:
    """An infinite list in which every slice [e n, (e + 1) n) holds each of range(n) once.

    Args:
        n: items an epoch, at least 1.
        key: equal keys give equal lists; each epoch has its own permutation.
    """

    def __init__(self, n: int, key: bytes):
        self.n = n
        self._key = key
        self._block = lru_cache(maxsize=4)(self._compute_block)

    def __call__(self, begin: int, end: int) -> np.ndarray:
        """Items at the positions [begin, end), int64."""
        pieces = []
        for number in range(begin // _BLOCK, (end - 1) // _BLOCK + 1):
            origin = number * _BLOCK
            pieces.append(self._block(number)[max(0, begin - origin) : end - origin])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _compute_block(self, number: int) -> np.ndarray:
        positions = np.arange(number * _BLOCK, (number + 1) * _BLOCK, dtype=np.int64)
        epochs, slots = np.divmod(positions, self.n)
        items = np.empty_like(slots)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            chosen = epochs == epoch
            items[chosen] = Permutation(self.n, self._key + str(epoch).encode())(slots[chosen])
        return items
