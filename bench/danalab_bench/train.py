"""Speed of the trainer on GPUs: tokens per second against a hand-written loop, MFU, memory.

The complete trainer is measured: loader, guard, logging, schedule. CPUs: `danalab_bench.train_cpu`.
"""

import contextlib
import gc
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from danalab.data import open_dataset
from danalab.hardware import peak_flops
from danalab.scaling import dimensions
from danalab.train.config.flags import Dtype
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.folder import RunFolder
from danalab.train.stage import BatchSource
from danalab.train.step.loss import TrainingBatch
from danalab.train.system.device import peak_memory_gib
from danalab.train.trainer import Trainer
from danalab_bench.peers import PlainLoop, PlainModel
from danalab_bench.timing import WARM_UP, Say, Work, machine, synchronize


@dataclass(frozen=True)
class TrainingCase:
    """A model and a batch."""

    arch: str
    heads: int
    vocab_size: int
    batch_size: int
    seq_len: int
    activation_checkpointing: str = "none"
    loss: str = "chunked"
    """"chunked" is ours; "plain" has no trainer, only the plain loop with whole logits (enoki)."""
    compile: bool | None = None
    """None: as the trainer does by default."""


GPU_CASES = (
    *(
        TrainingCase("enoki", heads, 50304, batch, 2048)
        for heads, batch in ((3, 32), (6, 32), (12, 16), (16, 16), (24, 8))
    ),
    *(TrainingCase("qwen3", heads, 50304, batch, 2048) for heads, batch in ((6, 8), (8, 4))),
    *(TrainingCase("enoki", heads, 50304, 32, 2048, "full") for heads in (12, 24)),
    *(TrainingCase("enoki", heads, 50304, 16, 2048, loss="plain") for heads in (6, 12)),
)
BLOCK = 10
"""Steps of a turn."""


def measure(cases: Sequence[TrainingCase], rounds: int, say: Say) -> dict[str, Any]:
    """Measure each case on a GPU; see `danalab bench train --device cuda`."""
    rows = []
    for case in cases:
        with tempfile.TemporaryDirectory() as scratch:
            data = random_tokens(Path(scratch) / "data", case.vocab_size, case.seq_len)
            rows.append({**asdict(case), **_alone(case, data, Path(scratch), rounds)})
        say(line(rows[-1]))
    return {"benchmark": "train", "machine": machine("cuda"), "rounds": rounds, "block": BLOCK, "cases": rows}


def random_tokens(folder: Path, vocab_size: int, seq_len: int) -> Path:
    """Sequences of token ids by Zipf's law; the content does not matter for speed."""
    for split, rows in (("train", 4_000_000 // seq_len), ("val", 64)):
        ids = np.minimum(np.random.default_rng(0).zipf(1.2, (rows, seq_len + 1)), vocab_size) - 1
        ids[0, 0] = vocab_size - 1
        (folder / split).mkdir(parents=True)
        np.save(folder / split / "ids.npy", ids.astype(np.uint16))
    return folder


def make_trainer(
    case: TrainingCase, data: Path, scratch: Path, steps: int, device: str, dtype: Dtype | None = None
) -> Trainer:
    """The complete trainer of `danalab train`, which logs and saves into `scratch`."""
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
        dtype=dtype,  # pyright: ignore[reportArgumentType] - None is "automatic"
        compile=case.compile,  # pyright: ignore[reportArgumentType]
        eval_interval=0,
        eval_batches=1,
        ckpt_interval=0,
        run_dir=scratch / "run",
    )
    dataset, folder = open_dataset(data), RunFolder(scratch / "run")
    folder.path.mkdir()
    return Trainer(resolve(config, dataset), dataset, folder)


def make_plain(case: TrainingCase, data: Path, device: str, dtype: torch.dtype) -> PlainLoop:
    """The loop written by hand for the same model."""
    sizes = dimensions(case.arch, case.heads, case.vocab_size)
    model = PlainModel(
        sizes.d_model, sizes.n_layers, sizes.n_heads, sizes.mlp_dim, case.vocab_size, case.seq_len
    )
    if device == "cuda":
        model = torch.compile(model)
    return PlainLoop(
        model,  # pyright: ignore[reportArgumentType]
        np.load(data / "train" / "ids.npy", mmap_mode="r").reshape(-1),
        batch_size=case.batch_size,
        seq_len=case.seq_len,
        device=torch.device(device),
        dtype=dtype,
    )


class BlocksTimed(Exception):
    """All blocks are timed: a checkpoint and an evaluation would only take time."""


class TimedBlocks(BatchSource):
    """Batches with `begin` called before and `end` after each block of steps; ends the run by `BlocksTimed`."""

    def __init__(self, source: BatchSource, rounds: int, block: int, begin: Work, end: Work):
        self._source, self._rounds, self._block, self._begin, self._end = source, rounds, block, begin, end

    def iterate(self, start_step: int = 0) -> Iterator[TrainingBatch]:
        """See `BatchSource.iterate`. A block has ended when the batch after it is asked for."""
        source = self._source.iterate(start_step)
        for _ in range(self._rounds):
            self._begin()
            for _ in range(self._block):
                yield next(source)
            self._end()
        if isinstance(source, Generator):
            source.close()  # ends a thread that reads ahead
        raise BlocksTimed


def _alone(case: TrainingCase, data: Path, scratch: Path, rounds: int) -> dict[str, Any]:
    """On a GPU: the trainer, then the plain loop, each with the whole memory."""
    row = trainer_alone(case, data, scratch, rounds) if case.loss == "chunked" else {}
    gc.collect()
    torch.cuda.empty_cache()
    if case.arch == "enoki" and case.activation_checkpointing == "none":
        row |= _plain_alone(case, data, rounds)
        if "tokens_per_second" in row:
            row["speed_over_plain"] = row["tokens_per_second"] / row["plain_tokens_per_second"]
    return row


def trainer_alone(
    case: TrainingCase, data: Path, scratch: Path, rounds: int, device: str = "cuda", block: int = BLOCK
) -> dict[str, Any]:
    """Speed, MFU and peak memory of the trainer."""
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    trainer = make_trainer(case, data, scratch, (rounds + WARM_UP) * block + 1, device)
    times: list[float] = []  # before and after each block, the wait for the device included

    def note() -> None:
        synchronize(device)
        times.append(time.perf_counter())

    trainer.batches = TimedBlocks(trainer.batches, rounds + WARM_UP, block, note, note)
    with contextlib.suppress(BlocksTimed):
        trainer.fit()
    seconds = [end - begin for begin, end in zip(times[::2], times[1::2], strict=True)]
    rate = block * case.batch_size * case.seq_len / median(seconds[WARM_UP:])
    peak = peak_flops(torch.cuda.get_device_name()) if on_gpu else None
    total = trainer.stage.consumption
    return {
        "tokens_per_second": rate,
        "mfu": rate * total.flops(1) / total.tokens(1) / peak[0] if peak else None,
        "peak": {"flops": peak[0], "source": peak[1]} if peak else None,
        "memory_gib": peak_memory_gib(trainer.device),
        "params": sum(p.numel() for p in trainer.model.parameters()),
    }


def _plain_alone(case: TrainingCase, data: Path, rounds: int) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    plain = make_plain(case, data, "cuda", torch.bfloat16)
    times = []
    for number in range(rounds + WARM_UP):
        start = time.perf_counter()
        plain.run(BLOCK)  # reads the last loss, which waits for the device
        if number >= WARM_UP:
            times.append(time.perf_counter() - start)
    return {
        "plain_tokens_per_second": BLOCK * case.batch_size * case.seq_len / median(times),
        "plain_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def line(row: dict[str, Any]) -> str:
    """A case as text."""
    words = [
        f"{row['arch']} heads {row['heads']}, batch {row['batch_size']} x {row['seq_len']}, {row['loss']} loss"
    ]
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
    if "speed_over_plain" in row:
        words.append(f"{row['speed_over_plain']:.3f} x plain")
    return ", ".join(words)
