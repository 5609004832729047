"""Speed of the trainer: tokens per second against a hand-written loop, and the trainer's own overhead.

The two alternate in blocks of steps: when the trainer requests the first batch of a block, it waits while the plain
loop runs its block. The complete trainer is measured: loader, guard, logging, schedule. Its overhead is the share of a
step outside forward, backward and the optimizer.
"""

import contextlib
import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from danalab.benchmarks.plain_loop import PlainLoop, PlainModel
from danalab.benchmarks.timing import WARM_UP, machine, ratios, spread
from danalab.data import open_dataset
from danalab.scaling import dimensions
from danalab.scaling.hardware import peak_flops
from danalab.train.build import build_trainer
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.folder import RunFolder
from danalab.train.stage import BatchSource
from danalab.train.step.batch import Batch
from danalab.train.trainer import Trainer


@dataclass(frozen=True)
class Case:
    """A model and a batch."""

    arch: str
    heads: int
    vocab_size: int
    batch_size: int
    seq_len: int
    activation_checkpointing: str = "none"
    loss: str = "chunked"
    """"chunked" is ours; "plain" has no trainer, only the plain loop with whole logits (enoki)."""


CPU_CASES = (Case("enoki", 3, 4096, 8, 256),)
GPU_CASES = (
    *(Case("enoki", heads, 50304, batch, 2048) for heads, batch in ((3, 32), (6, 32), (12, 16), (16, 16), (24, 8))),
    *(Case("qwen3", heads, 50304, batch, 2048) for heads, batch in ((6, 8), (8, 4))),
    *(Case("enoki", heads, 50304, 32, 2048, "full") for heads in (12, 24)),
    *(Case("enoki", heads, 50304, 16, 2048, loss="plain") for heads in (6, 12)),
)
BLOCK = {"cpu": 5, "cuda": 10}
"""Steps of a turn."""


def measure(device: str, cases: Sequence[Case], rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure each case; see `danalab bench train`.

    Args:
        device: cpu or cuda.
        rounds: turns of each side that count.
        say: called with each line of text.
    """
    found: dict[str, Any] = {"machine": machine(device), "rounds": rounds, "block": BLOCK[device], "cases": []}
    for case in cases:
        with tempfile.TemporaryDirectory() as scratch:
            data = random_tokens(Path(scratch) / "data", case.vocab_size, case.seq_len)
            row = {**asdict(case), **(_against_plain if device == "cpu" else _alone)(case, data, Path(scratch), rounds)}
        found["cases"].append(row)
        say(_line(row))
    return found


def random_tokens(folder: Path, vocab_size: int, seq_len: int) -> Path:
    """Sequences of token ids by Zipf's law; the content does not matter for speed."""
    for split, rows in (("train", 4_000_000 // seq_len), ("val", 64)):
        ids = np.minimum(np.random.default_rng(0).zipf(1.2, (rows, seq_len + 1)), vocab_size) - 1
        ids[0, 0] = vocab_size - 1
        (folder / split).mkdir(parents=True)
        np.save(folder / split / "ids.npy", ids.astype(np.uint16))
    return folder


def _trainer(case: Case, data: Path, scratch: Path, steps: int, device: str) -> Trainer:
    config = TrainConfig(
        arch=case.arch,
        opt="adamw",
        heads=case.heads,
        vocab_size=case.vocab_size,
        data=str(data),
        seq_len=case.seq_len,
        batch_size=case.batch_size,
        iterations=steps,
        activation_checkpointing=case.activation_checkpointing,
        device=device,
        eval_interval=0,
        eval_batches=1,
        ckpt_interval=0,
        run_dir=scratch / "run",
    )
    dataset, folder = open_dataset(data), RunFolder(scratch / "run")
    folder.path.mkdir()
    return build_trainer(resolve(config, dataset), dataset, folder)


def _plain(case: Case, data: Path, device: str) -> PlainLoop:
    sizes = dimensions(case.arch, case.heads, case.vocab_size)
    model = PlainModel(sizes.d_model, sizes.n_layers, sizes.n_heads, sizes.mlp_dim, case.vocab_size, case.seq_len)
    if device == "cuda":
        model = torch.compile(model)
    return PlainLoop(
        model,  # pyright: ignore[reportArgumentType]
        np.load(data / "train" / "ids.npy", mmap_mode="r").reshape(-1),
        batch_size=case.batch_size,
        seq_len=case.seq_len,
        device=torch.device(device),
        dtype=torch.bfloat16 if device == "cuda" else torch.float32,
    )


class TakingTurns(BatchSource):
    """A batch source that runs another function between blocks of steps, and times both."""

    def __init__(
        self, source: BatchSource, rounds: int, block: int, other: Callable[[], Any], at_work: Callable[[], float]
    ):
        """Args:
        other: runs a block of the other side.
        at_work: seconds that the trainer has spent in forward, backward and optimizer so far.
        """
        self._source, self._rounds, self._block = source, rounds + WARM_UP, block
        self._other, self._at_work = other, at_work
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.working: list[float] = []
        """Of `ours`, seconds in forward, backward and optimizer."""

    def iterate(self, start_step: int = 0) -> Iterator[Batch]:
        """See `BatchSource.iterate`. A block of steps has ended when the batch after it is asked for."""
        source = self._source.iterate(start_step)
        for number in range(self._rounds):
            start, worked = time.perf_counter(), self._at_work()
            for _ in range(self._block):
                yield next(source)
            middle, worked = time.perf_counter(), self._at_work() - worked
            self._other()
            if number >= WARM_UP:
                self.ours.append(middle - start)
                self.theirs.append(time.perf_counter() - middle)
                self.working.append(worked)
        yield from source


def _steps(rounds: int, block: int) -> int:
    """Steps of a run of `rounds` blocks, plus one to observe the end of the last block."""
    return (rounds + WARM_UP) * block + 1


def _against_plain(case: Case, data: Path, scratch: Path, rounds: int) -> dict[str, Any]:
    block = BLOCK["cpu"]
    trainer = _trainer(case, data, scratch, _steps(rounds, block), "cpu")
    plain = _plain(case, data, "cpu")
    work = _Stopwatch()
    turns = TakingTurns(trainer.batches, rounds, block, lambda: plain.run(block), lambda: work.seconds)
    trainer.batches = turns
    with work.around(trainer):
        trainer.fit()
    tokens = block * case.batch_size * case.seq_len
    return {
        "tokens_per_second": tokens / median(turns.ours),
        "plain_tokens_per_second": tokens / median(turns.theirs),
        "speed_over_plain": ratios(turns.theirs, turns.ours),
        "overhead": spread([1 - inside / whole for inside, whole in zip(turns.working, turns.ours, strict=True)]),
    }


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


def _alone(case: Case, data: Path, scratch: Path, rounds: int) -> dict[str, Any]:
    """On a GPU: the trainer, then the plain loop, each with the whole memory."""
    row = _trainer_alone(case, data, scratch, rounds) if case.loss == "chunked" else {}
    gc.collect()
    torch.cuda.empty_cache()
    if case.arch == "enoki" and case.activation_checkpointing == "none":
        row |= _plain_alone(case, data, rounds)
        if "tokens_per_second" in row:
            row["speed_over_plain"] = row["tokens_per_second"] / row["plain_tokens_per_second"]
    return row


def _trainer_alone(case: Case, data: Path, scratch: Path, rounds: int) -> dict[str, Any]:
    block = BLOCK["cuda"]
    torch.cuda.reset_peak_memory_stats()
    trainer = _trainer(case, data, scratch, _steps(rounds, block), "cuda")
    turns = TakingTurns(trainer.batches, rounds, block, torch.cuda.synchronize, lambda: 0.0)
    trainer.batches = turns
    trainer.fit()
    # A block ends when its last step was launched: waiting for the device is in `theirs`.
    seconds = median(launched + waited for launched, waited in zip(turns.ours, turns.theirs, strict=True))
    rate = block * case.batch_size * case.seq_len / seconds
    peak = peak_flops(torch.cuda.get_device_name())
    total = trainer.stage.consumption
    return {
        "tokens_per_second": rate,
        "mfu": rate * total.flops(1) / total.tokens(1) / peak[0] if peak else None,
        "peak": {"flops": peak[0], "source": peak[1]} if peak else None,
        "memory_gib": torch.cuda.max_memory_allocated() / 2**30,
        "params": sum(p.numel() for p in trainer.model.parameters()),
    }


def _plain_alone(case: Case, data: Path, rounds: int) -> dict[str, Any]:
    block = BLOCK["cuda"]
    torch.cuda.reset_peak_memory_stats()
    plain = _plain(case, data, "cuda")
    times = []
    for number in range(rounds + WARM_UP):
        start = time.perf_counter()
        plain.run(block)  # reads the last loss, which waits for the device
        if number >= WARM_UP:
            times.append(time.perf_counter() - start)
    return {
        "plain_tokens_per_second": block * case.batch_size * case.seq_len / median(times),
        "plain_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def _line(row: dict[str, Any]) -> str:
    words = [f"{row['arch']} heads {row['heads']}, batch {row['batch_size']} x {row['seq_len']}, {row['loss']} loss"]
    if row["activation_checkpointing"] != "none":
        words.append(f"checkpointing {row['activation_checkpointing']}")
    for key, text in (
        ("tokens_per_second", "{:,.0f} tok/s"),
        ("plain_tokens_per_second", "plain loop {:,.0f} tok/s"),
        ("mfu", "MFU {:.1%}"),
        ("memory_gib", "{:.2f} GiB"),
    ):
        if row.get(key) is not None:
            words.append(text.format(row[key]))
    ratio = row.get("speed_over_plain")
    if ratio is not None:
        words.append(f"{ratio['median'] if isinstance(ratio, dict) else ratio:.3f} x plain")
    if row.get("overhead"):
        words.append(f"overhead {row['overhead']['median']:.2%}")
    return ", ".join(words)
