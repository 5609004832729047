"""Batches as a pure function of the step.

The tokens of a split are cut into windows of seq_len + 1 at stride seq_len: window w is tokens[w L : w L + L + 1], its
inputs are the first L, its targets the last L, so every token but the first is predicted once. Epoch e shows each
window once, in an order given by a keyed permutation of (fingerprint, seed, seq_len, e); epochs follow one another
without a seam. The global batch of step s is the sequences s G .. s G + G - 1 of that endless list; rank r takes the
r-th of its `world_size` equal slices.

So the order does not depend on the number of ranks or workers, nor on the global batch (whose change moves only the
place in the list), and there is no state beyond the number of sequences consumed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from functools import lru_cache
from queue import Queue

import numpy as np
import torch

from danalab.data.permutation import Permutation
from danalab.data.store import TokenStore
from danalab.errors import UserError

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets, int64 [sequences, seq_len]."""

_BLOCK = 4096  # places of the permutation computed at a time: per step it would cost more than the copy of the tokens


class Batches:
    """`batches[step]` for any step >= 0; made by `Dataset.batches`."""

    def __init__(
        self,
        store: TokenStore,
        fingerprint: str,
        *,
        seed: int,
        global_batch: int,
        seq_len: int,
        rank: int = 0,
        world_size: int = 1,
    ):
        """See `Dataset.batches`."""
        for name, value in (("global_batch", global_batch), ("seq_len", seq_len), ("world_size", world_size)):
            if value < 1:
                raise UserError(f"{name} {value}: at least 1 is needed")
        if not 0 <= rank < world_size:
            raise UserError(f"rank {rank} is not in [0, {world_size})")
        if global_batch % world_size:
            raise UserError(f"global batch {global_batch} is not a multiple of the {world_size} ranks")
        self.seq_len = seq_len
        self.global_batch = global_batch
        self.local_batch = global_batch // world_size
        self.windows_per_epoch = max(0, store.n_tokens - 1) // seq_len
        if self.windows_per_epoch < global_batch:
            raise UserError(
                f"{store.name}: {store.n_tokens:,} tokens, but one batch of {global_batch} x {seq_len} needs "
                f"{global_batch * seq_len + 1:,}; give more text, or a smaller batch or seq-len"
            )
        self._store = store
        self._key = f"danalab order 1|{fingerprint}|{seed}|{seq_len}|".encode()
        self._first = rank * self.local_batch
        self._block = lru_cache(maxsize=4)(self._compute_block)

    def windows(self, step: int) -> np.ndarray:
        """Indices of this rank's windows at `step`, int64 [local batch]."""
        if step < 0:
            raise IndexError(f"step {step} is negative")
        begin = step * self.global_batch + self._first
        end = begin + self.local_batch
        pieces = []
        for number in range(begin // _BLOCK, (end - 1) // _BLOCK + 1):
            origin = number * _BLOCK
            pieces.append(self._block(number)[max(0, begin - origin) : end - origin])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _compute_block(self, number: int) -> np.ndarray:
        places = np.arange(number * _BLOCK, (number + 1) * _BLOCK, dtype=np.int64)
        epochs, slots = np.divmod(places, self.windows_per_epoch)
        windows = np.empty_like(slots)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            chosen = epochs == epoch
            permutation = Permutation(self.windows_per_epoch, self._key + str(epoch).encode())
            windows[chosen] = permutation(slots[chosen])
        return windows

    def __getitem__(self, step: int) -> Batch:
        """This rank's (inputs, targets) of a step, int64 [global_batch / world_size, seq_len]."""
        return _batch(self._store, self.windows(step), self.seq_len)

    def iterate(self, start_step: int = 0, *, depth: int = 2, pin_memory: bool = False) -> Iterator[Batch]:
        """Batches from `start_step` on, without end, assembled ahead by a background thread.

        Args:
            start_step: the first step.
            depth: batches kept ready.
            pin_memory: put them in page-locked memory, for copies to a GPU beside the computation.
        """
        ready: Queue[Batch | BaseException] = Queue()
        free = threading.Semaphore(depth)
        stop = threading.Event()

        def assemble() -> None:
            for step in itertools.count(start_step):
                free.acquire()
                if stop.is_set():
                    return
                try:
                    inputs, targets = self[step]
                    ready.put((inputs.pin_memory(), targets.pin_memory()) if pin_memory else (inputs, targets))
                except BaseException as error:
                    ready.put(error)
                    return

        thread = threading.Thread(target=assemble, name="danalab-loader", daemon=True)
        thread.start()
        try:
            while True:
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                free.release()
                yield item
        finally:
            stop.set()
            free.release()
            # A thread inside torch when the interpreter ends would abort the process.
            thread.join()


class Sequential:
    """All windows of a split in order, for evaluation; made by `Dataset.sequential`.

    `len(windows)` is their number, `windows[i:j]` is (inputs, targets), int64 [j - i, seq_len]. The last tokens, fewer
    than seq_len, are left out.
    """

    def __init__(self, store: TokenStore, seq_len: int):
        """See `Dataset.sequential`."""
        if seq_len < 1:
            raise UserError(f"seq_len {seq_len}: at least 1 is needed")
        self.seq_len = seq_len
        self._n = max(0, store.n_tokens - 1) // seq_len
        self._store = store
        if self._n == 0:
            raise UserError(
                f"{store.name}: {store.n_tokens:,} tokens, but one sequence needs {seq_len + 1:,}; "
                "give more text or a smaller seq-len"
            )

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, which: slice) -> Batch:
        return _batch(self._store, np.arange(self._n)[which], self.seq_len)


def _batch(store: TokenStore, windows: np.ndarray, seq_len: int) -> Batch:
    rows = store.rows(windows * seq_len, seq_len + 1)
    inputs = torch.empty(len(rows), seq_len, dtype=torch.int64)
    targets = torch.empty_like(inputs)
    # Widened by numpy, on this thread alone: torch would start a second team of threads beside the trainer's.
    np.copyto(inputs.numpy(), rows[:, :-1])
    np.copyto(targets.numpy(), rows[:, 1:])
    return inputs, targets
