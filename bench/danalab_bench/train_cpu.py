"""Speed of the trainer on a CPU: tokens per second against a hand-written loop, in float32 and in bfloat16.

Trainer and loop are processes of their own, as a person starts them: settings of the allocator and of the libraries
that the trainer makes for its process do not reach the loop. They take turns of a few steps, so that a slow moment of
the machine affects all; a ratio is the median over rounds of the ratio within a round. The complete trainer is
measured: loader, guard, logging, schedule. Its overhead is the share of a step outside forward, backward and optimizer.
The matrix rate is that of the fastest product that a side makes beside each of its turns. bfloat16 is left out on CPUs
that do not multiply it.

`python -m danalab_bench.train_cpu TASK` is one side: for each line on standard input it makes a block of steps and
writes a JSON object with its seconds, and the rate of the best matrix product right after it [FLOP/s].
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.native_library import multiplies_bfloat16
from danalab.scaling import dimensions, flops_per_token
from danalab.train.trainer import Trainer
from danalab_bench import environment
from danalab_bench.timing import WARM_UP, Say, machine, ratios, spread
from danalab_bench.train import (
    BlocksTimed,
    TimedBlocks,
    TrainingCase,
    make_plain,
    make_trainer,
    random_tokens,
)

BLOCK = 5
"""Steps of a turn."""
SIDES = ("trainer float32", "loop float32", "trainer bfloat16", "loop bfloat16")


@dataclass(frozen=True)
class ThreadedCase:
    """A model, a batch and a number of threads."""

    case: TrainingCase
    threads: int


def cells(heads: Sequence[int], threads: Sequence[int]) -> list[ThreadedCase]:
    """The cells of `danalab bench train`: 2,048 tokens a step (1,024 in short rows), vocabulary 4,096.

    Args: heads: of 64 features each.
    """
    shapes = ((8, 128), (4, 512))
    return [
        ThreadedCase(TrainingCase("enoki", n, 4096, batch, seq_len), count)
        for count in threads
        for n in heads
        for batch, seq_len in shapes
    ]


def measure(
    chosen: Sequence[ThreadedCase], rounds: int, say: Say, sides: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure each cell; `sides`: of `SIDES`, by default all that the CPU has instructions for."""
    if not sides:
        sides = SIDES if multiplies_bfloat16() else SIDES[:2]
        if sides != SIDES:
            say("bfloat16 is left out: this CPU does not multiply it")
    rows = []
    for cell in chosen:
        rows.append(_measure_cell(cell, rounds, sides))
        for line in lines(rows[-1]):
            say(line)
    return {"benchmark": "train", "machine": machine("cpu"), "rounds": rounds, "block": BLOCK, "cells": rows}


def _measure_cell(cell: ThreadedCase, rounds: int, sides: Sequence[str]) -> dict[str, Any]:
    case = cell.case
    turns: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        scratch = Path(name)
        data = random_tokens(scratch / "data", case.vocab_size, case.seq_len)
        started = {side: running.enter_context(_Side(side, cell, data, scratch, rounds)) for side in sides}
        for number in range(rounds + WARM_UP):
            first = number % len(sides)
            for side in (*sides[first:], *sides[:first]):
                turn = started[side].turn()
                if number >= WARM_UP:
                    turns[side].append(turn)
    seconds = {side: [turn["seconds"] for turn in taken] for side, taken in turns.items()}
    tokens = BLOCK * case.batch_size * case.seq_len
    sizes = dimensions(case.arch, case.heads, case.vocab_size)
    flops = flops_per_token(sizes, case.seq_len)
    matrix_rate = {
        dtype: max(turn["matrix_rate"] for side in sides if side.endswith(dtype) for turn in turns[side])
        for dtype in dict.fromkeys(side.split()[1] for side in sides)
    }
    row: dict[str, Any] = {**asdict(case), "d_model": sizes.d_model, "threads": cell.threads, "sides": {}}
    for side in sides:
        rate = tokens / median(seconds[side])
        dtype = side.split()[1]
        row["sides"][side] = {
            "tokens_per_second": rate,
            "share_of_matrix_rate": rate * flops / matrix_rate[dtype],
        }
        if side.startswith("trainer"):
            working = [1 - turn["working"] / turn["seconds"] for turn in turns[side]]
            row["sides"][side]["overhead"] = spread(working)
            for other in {f"loop {dtype}", "loop float32", "trainer float32"} & set(sides) - {side}:
                row["sides"][side][f"over {other}"] = ratios(seconds[other], seconds[side])
    row["matrix_rate"] = matrix_rate
    return row


class _Side:
    """The parent's end of a process that takes turns (`main`)."""

    def __init__(self, side: str, cell: ThreadedCase, data: Path, scratch: Path, rounds: int):
        kind, dtype = side.split()
        task = {
            "kind": kind, "dtype": dtype, "case": asdict(cell.case), "threads": cell.threads, "data": str(data),
            "scratch": str(scratch / side.replace(" ", "-")), "rounds": rounds + WARM_UP, "block": BLOCK,
        }  # fmt: skip
        (scratch / side.replace(" ", "-")).mkdir()
        pinned = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "OMP_NUM_THREADS": str(cell.threads)}
        self._name = f"{kind} in {dtype}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "danalab_bench.train_cpu", json.dumps(task)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(**pinned),
        )  # fmt: skip

    def __enter__(self) -> "_Side":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def turn(self) -> dict[str, float]:
        """Let it make a block of steps; returns its times."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says what happened
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, float]:
        """The next line of the process."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UserError(
                f"the {self._name} ended with exit code {self._process.wait()}; see the messages above"
            )
        return json.loads(line)


def lines(row: dict[str, Any]) -> Iterator[str]:
    """A cell as text, a line for each side."""
    name = f"d {row['d_model']}, batch {row['batch_size']} x {row['seq_len']}, {row['threads']} threads"
    for side, values in row["sides"].items():
        text = f"{name:<36} {side:<17}{values['tokens_per_second']:>9,.0f} tok/s"
        text += f", {values['share_of_matrix_rate']:4.0%} of the matrix rate"
        text += "".join(
            f", {values[key]['median']:.2f} x {key[5:]}" for key in sorted(values) if key[:5] == "over "
        )
        yield text


def main() -> None:
    """Serve the task of the command line."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(task["threads"])
    case, data = TrainingCase(**task["case"]), Path(task["data"])
    rounds, block, dtype = task["rounds"], task["block"], getattr(torch, task["dtype"])
    if task["kind"] == "loop":
        plain = make_plain(case, data, "cpu", dtype)
        for _ in range(rounds):
            wait()
            start = time.perf_counter()
            plain.run(block)
            seconds = time.perf_counter() - start
            tell(seconds=seconds, matrix_rate=matrix_rate(dtype))
    else:
        trainer = make_trainer(case, data, Path(task["scratch"]), rounds * block + 1, "cpu", task["dtype"])
        with _stopwatch(trainer) as worked, contextlib.suppress(BlocksTimed):
            began = []

            def begin() -> None:
                wait()
                began[:] = time.perf_counter(), worked()

            def end() -> None:
                seconds, working = time.perf_counter() - began[0], worked() - began[1]
                tell(seconds=seconds, working=working, matrix_rate=matrix_rate(dtype))

            trainer.batches = TimedBlocks(trainer.batches, rounds, block, begin, end)
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


@contextlib.contextmanager
def _stopwatch(trainer: Trainer) -> Iterator[Callable[[], float]]:
    """Within the context, the seconds so far in forward, backward and optimizer of a trainer on a CPU."""
    seconds: list[float] = []

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                seconds.append(time.perf_counter() - start)

        return call

    with contextlib.ExitStack() as patches:
        for owner, name in ((trainer.model, "forward"), (trainer.driver, "step"), (Tensor, "backward")):
            patches.enter_context(patch.object(owner, name, timed(getattr(owner, name))))
        yield lambda: sum(seconds)


if __name__ == "__main__":
    main()
