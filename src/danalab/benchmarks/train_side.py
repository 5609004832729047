"""`python -m danalab.benchmarks.train_side TASK`: the trainer or the hand-written loop, one block of steps at a time.

For each line on standard input it makes a block and writes a JSON object with its seconds, and the rate of the best
matrix product right after it [FLOP/s].
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.benchmarks.train import Case, make_plain, make_trainer
from danalab.models.layers.precision import onednn_products
from danalab.train.stage import BatchSource
from danalab.train.step.loss import TrainingBatch
from danalab.train.system.device import tune_malloc
from danalab.train.trainer import Trainer


def main() -> None:
    """Serve the task of the command line."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(task["threads"])
    case, data = Case(**task["case"]), Path(task["data"])
    rounds, block = task["rounds"], task["block"]
    if task["kind"] == "loop":
        plain = make_plain(case, data, "cpu", getattr(torch, task["dtype"]))
        for _ in range(rounds):
            wait()
            start = time.perf_counter()
            plain.run(block)
            seconds = time.perf_counter() - start
            with onednn_products():
                tell(seconds=seconds, matrix_rate=matrix_rate(getattr(torch, task["dtype"])))
    else:
        tune_malloc()
        trainer = make_trainer(case, data, Path(task["scratch"]), rounds * block + 1, "cpu", task["dtype"])
        work = _Stopwatch()
        dtype = getattr(torch, task["dtype"])
        trainer.batches = TurnTaking(trainer.batches, rounds, block, lambda: work.seconds, dtype)
        with work.around(trainer), onednn_products():
            trainer.fit()


def wait() -> None:
    """Wait for one's turn."""
    if not sys.stdin.readline():
        raise SystemExit(1)  # the benchmark was interrupted


def tell(**values: float) -> None:
    """Write a line for the parent."""
    print(json.dumps(values), flush=True)


def matrix_rate(dtype: torch.dtype, repeats: int = 3) -> float:
    """FLOP/s of the fastest of some products: of square matrices, and of the shape of a small model's layers."""
    best = 0.0
    for rows, inner, columns in ((1024, 1024, 1024), (1024, 256, 1024)):
        a, b = torch.ones(rows, inner, dtype=dtype), torch.ones(columns, inner, dtype=dtype).T
        for _ in range(repeats + 1):
            start = time.perf_counter()
            torch.mm(a, b)
            best = max(best, 2 * rows * inner * columns / (time.perf_counter() - start))
    return best


class TurnTaking(BatchSource):
    """A batch source that waits for its turn before each block of steps, and tells its times.

    `at_work()` is the time that the trainer has spent in forward, backward and optimizer so far [s].
    """

    def __init__(self, source: BatchSource, rounds: int, block: int, at_work: Callable[[], float], dtype: torch.dtype):
        self._source, self._rounds, self._block = source, rounds, block
        self._at_work, self._dtype = at_work, dtype

    def iterate(self, start_step: int = 0) -> Iterator[TrainingBatch]:
        """See `BatchSource.iterate`. A block of steps has ended when the batch after it is asked for."""
        source = self._source.iterate(start_step)
        for _ in range(self._rounds):
            wait()
            start, worked = time.perf_counter(), self._at_work()
            for _ in range(self._block):
                yield next(source)
            seconds, working = time.perf_counter() - start, self._at_work() - worked
            tell(seconds=seconds, working=working, matrix_rate=matrix_rate(self._dtype))
        yield from source


class _Stopwatch:
    """Seconds in forward, backward and the optimizer of a trainer on a CPU."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def around(self, trainer: Trainer) -> Iterator[None]:
        """Time the trainer's calls of its model and optimizer within the context."""
        model: Any = trainer.model
        watched = [(model, "forward"), (trainer.driver, "step")]
        originals = [getattr(owner, name) for owner, name in watched]
        backward = Tensor.backward
        stopwatch = self

        def timed(work: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                start = time.perf_counter()
                try:
                    return work(*args, **kwargs)
                finally:
                    stopwatch.seconds += time.perf_counter() - start

            return call

        for (owner, name), original in zip(watched, originals, strict=True):
            setattr(owner, name, timed(original))
        Tensor.backward = timed(backward)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            Tensor.backward = backward
            for owner, name in watched:
                delattr(owner, name)


if __name__ == "__main__":
    main()
