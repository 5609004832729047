"""A keyed pseudo-random permutation of range(n), computed position by position: no index in memory.

A Feistel network on pairs (left, right) of the mixed radix a x b >= n, a = ceil(sqrt(n)): each round adds a keyed hash
of one half to the other, modulo its radix. Subtracting it inverts the round, so the network is a bijection of
range(a b). Results outside range(n) go through the network again until they fall inside ("cycle walking"), which
gives a bijection of range(n). This is rare, since a b < n + a.

Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains".
"""

import hashlib
import math
from functools import lru_cache

import numpy as np

_ROUNDS = 8
_BLOCK = 4096  # positions computed at a time: step by step would cost more than copying the tokens


class EndlessOrder:
    """An infinite list, by its key, in which every slice [e n, (e + 1) n) holds each of range(n), n >= 1, once."""

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
        return np.concatenate(pieces)

    def _compute_block(self, number: int) -> np.ndarray:
        positions = np.arange(number * _BLOCK, (number + 1) * _BLOCK, dtype=np.int64)
        epochs, slots = np.divmod(positions, self.n)
        items = np.empty_like(slots)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            chosen = epochs == epoch
            items[chosen] = Permutation(self.n, self._key + str(epoch).encode())(slots[chosen])
        return items


class Permutation:
    """The permutation of range(n), 1 <= n < 2^62, given by `key`: the same on every machine."""

    def __init__(self, n: int, key: bytes):
        self.n = n
        self._left = max(1, math.isqrt(n - 1) + 1)
        self._right = -(-n // self._left)
        digest = hashlib.shake_256(key + n.to_bytes(8, "little")).digest(8 * _ROUNDS)
        self._keys = np.frombuffer(digest, "<u8")

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Items at `positions` [any shape, in range(n)], int64."""
        items = self._network(positions.astype(np.uint64))
        n = np.uint64(self.n)
        while len(outside := np.flatnonzero(items >= n)):
            items.flat[outside] = self._network(items.flat[outside])
        return items.astype(np.int64)

    def _network(self, x: np.ndarray) -> np.ndarray:
        a, b = np.uint64(self._left), np.uint64(self._right)
        left, right = x // b, x % b
        for number, key in enumerate(self._keys):
            if number % 2:
                right = (right + _mixed(left, key)) % b
            else:
                left = (left + _mixed(right, key)) % a
        return left * b + right


def _mixed(x: np.ndarray, key: np.uint64) -> np.ndarray:
    """Keyed 64-bit hash, below 2^63 so that adding a half cannot overflow (the finalizer of SplitMix64)."""
    x = (x ^ key) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(1)
