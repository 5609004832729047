"""Batches as a pure function of the step.

A data set is an infinite list of sequences (`Sequences`): epoch after epoch, each in the order of a permutation keyed
by (fingerprint, seed, seq_len, epoch). The global batch of step s is the next G(s) sequences of that list, where G is
a number or a ramp; rank r takes the r-th of its `world_size` equal slices.

The order is independent of the number of ranks and workers and of the global batch, and the only state is the number
of sequences consumed. A shorter length (a ramp of lengths) cuts the same sequences into pieces, in the same order.
"""

import threading
from collections.abc import Generator
from queue import Queue

import numpy as np

from danalab.data.order.ramps import Ramp
from danalab.data.order.windows import Rows, Sequences, Span, TokenBatch
from danalab.errors import UserError

_TOKENS_AT_ONCE = 1 << 16  # several small batches are assembled together: otherwise Python costs more than copying


class Batches:
    """`batches[step]` for any step >= 0; made by `Dataset.batches`."""

    def __init__(
        self,
        sequences: Sequences,
        *,
        global_batch: int | Ramp,
        seq_len: int | Ramp | None = None,
        rank: int = 0,
        world_size: int = 1,
    ):
        """Batches of a list of sequences.

        Args:
            sequences: the infinite list.
            global_batch: sequences per step, over all ranks.
            seq_len: tokens a sequence, a divisor of the list's own length (the default).
        Raises:
            UserError: a batch that is no multiple of the ranks or exceeds the data, or a length that does not divide.
        """
        batch = global_batch if isinstance(global_batch, Ramp) else Ramp(global_batch)
        length = seq_len if isinstance(seq_len, Ramp) else Ramp(seq_len or sequences.seq_len)
        if world_size < 1:
            raise UserError(f"world_size {world_size}: at least 1 is needed")
        if not 0 <= rank < world_size:
            raise UserError(f"rank {rank} is not in [0, {world_size})")
        for size in batch.values:
            if size < 1:
                raise UserError(f"global_batch {size}: at least 1 is needed")
            if size % world_size:
                raise UserError(f"global batch {size} is not a multiple of the {world_size} ranks")
        for value in length.values:
            if sequences.seq_len % value:
                raise UserError(f"length {value} does not divide the full sequence length, {sequences.seq_len}")
        if sequences.per_epoch < batch.final:
            raise UserError(
                f"{sequences.name}: {sequences.per_epoch:,} sequences of {sequences.seq_len} tokens, but one batch has "
                f"{batch.final:,}; give more text, or a smaller batch or seq-len"
            )
        self.seq_len = sequences.seq_len
        self.global_batch = batch.final
        self.local_batch = batch.final // world_size
        self.windows_per_epoch = sequences.per_epoch
        self._sequences, self._batch, self._length = sequences, batch, length
        self._rank, self._world_size = rank, world_size

    def report(self) -> str | None:
        """The effect of packing on the documents; None without packing."""
        made = getattr(self._sequences, "report", None)
        return None if made is None else str(made())

    def windows(self, step: int) -> np.ndarray:
        """Numbers of the sequences in this rank's part of `step`, int64."""
        return self._sequences.numbers([self._span(step)])

    def _span(self, step: int) -> Span:
        if step < 0:
            raise IndexError(f"step {step} is negative")
        local = self._batch.at(step) // self._world_size
        begin = self._batch.total(step) + self._rank * local
        return begin, begin + local

    def __getitem__(self, step: int) -> TokenBatch:
        """This rank's (inputs, targets) of a step, int64 [global_batch / world_size, seq_len]."""
        return self._cut(step, self._sequences.take([self._span(step)]))

    def _cut(self, step: int, batch: TokenBatch) -> TokenBatch:
        """The batch cut into pieces of the step's length."""
        length = self._length.at(step)
        return batch if length == self.seq_len else (batch[0].view(-1, length), batch[1].view(-1, length))

    def _several(self, step: int) -> list[TokenBatch]:
        """The batches of one or more steps from `step` on, assembled together if they are small."""
        local = self._batch.at(step) // self._world_size
        count = max(1, _TOKENS_AT_ONCE // (local * self.seq_len))
        if count == 1:
            return [self[step]]
        spans = [self._span(step + i) for i in range(count)]
        sizes = [end - begin for begin, end in spans]
        adjoining = [(spans[0][0], spans[-1][1])] if self._world_size == 1 else spans
        inputs, targets = self._sequences.take(adjoining)
        pairs = zip(inputs.split(sizes), targets.split(sizes), strict=True)
        return [self._cut(step + i, batch) for i, batch in enumerate(pairs)]

    def iterate(self, start_step: int = 0, *, depth: int = 2, pin_memory: bool = False) -> Generator[TokenBatch]:
        """Infinite iterator over batches from `start_step` on, assembled ahead by a background thread.

        Args:
            start_step: the first step.
            depth: batches (groups of batches, if they are small) kept ready.
            pin_memory: use page-locked memory, for asynchronous copies to a GPU.
        """
        ready: Queue[list[TokenBatch] | BaseException] = Queue()
        free = threading.Semaphore(depth)
        stop = threading.Event()

        def assemble() -> None:
            step = start_step
            while True:
                free.acquire()
                if stop.is_set():
                    return
                try:
                    group = self._several(step)
                    step += len(group)
                    if pin_memory:
                        group = [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in group]
                    ready.put(group)
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
                yield from item
        finally:
            stop.set()
            free.release()
            # A thread inside torch when the interpreter ends would abort the process.
            thread.join()


class Sequential:
    """All rows of a split in order, for evaluation; made by `Dataset.sequential`.

    `len(windows)` is their number, `windows[i:j]` is (inputs, targets), int64 [j - i, seq_len]. The last tokens of a
    stream, fewer than seq_len, are left out.
    """

    def __init__(self, rows: Rows, name: str):
        """Raises UserError if there is no row; `name` identifies the data in the message."""
        self.seq_len = rows.seq_len
        self._rows = rows
        if rows.n == 0:
            raise UserError(
                f"{name}: shorter than one sequence, which needs {rows.seq_len + 1:,} tokens; "
                "give more text or a smaller seq-len"
            )

    def __len__(self) -> int:
        return self._rows.n

    def __getitem__(self, which: slice) -> TokenBatch:
        return self._rows.read(np.arange(self._rows.n)[which])
