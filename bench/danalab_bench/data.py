"""Throughput of data: assembling batches against memcpy, and preparing a corpus against the tokenizer library alone.

Loader: bytes of (inputs, targets) per second from page cache, relative to copying the same number of bytes of the same
mapped file, best of several rounds. Preparation of one and many copies of the standard library: text per second from
documents to finished shards, including the start of processes, relative to cores x the library's rate on one thread;
by processor time of all processes, which is independent of other load on the machine, and by wall time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from danalab.data import load_tokenizer, open_dataset, prepare
from danalab.data.sources import Source, StdlibSource
from danalab.data.tokenizers import BpeTokenizer, Tokenizer, train_bpe
from danalab.errors import UserError
from danalab.hardware import available_cores
from danalab_bench.timing import Say, machine


def best(work: Callable[[], object], rounds: int) -> float:
    """Minimum time of several rounds [s]."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def loader(folder: Path) -> dict[str, Any]:
    """Batches from a bare file of 100M tokens (200 MB)."""
    np.random.default_rng(0).integers(0, 50257, 100_000_000, dtype=np.uint16).tofile(folder / "train.bin")
    dataset = open_dataset(folder)
    results = {}
    for name, global_batch, seq_len in (("large", 32, 2048), ("long", 8, 32768), ("small", 8, 128)):
        batches = dataset.batches(seed=0, global_batch=global_batch, seq_len=seq_len)
        steps = max(1, 2**24 // (global_batch * seq_len))
        size = 16 * global_batch * seq_len
        mapped = np.memmap(dataset.store.shards[0].path, np.uint8, "r")
        ready = batches.iterate(0)
        next(ready)
        place = iter(range(10**9))

        def assemble(batches=batches, steps=steps, place=place) -> None:
            for _ in range(steps):
                batches[next(place)]

        def prefetch(ready=ready, steps=steps) -> None:
            for _ in range(steps):
                next(ready)

        def copy(mapped=mapped, size=size, steps=steps) -> None:
            for step in range(steps):
                begin = step * size % (len(mapped) - size)
                mapped[begin : begin + size].copy()

        seconds = {"assemble": best(assemble, 7), "prefetch": best(prefetch, 7), "memcpy": best(copy, 7)}
        ready.close()  # type: ignore[attr-defined]
        rates = {f"{key}_gb_per_s": size * steps / value / 1e9 for key, value in seconds.items()}
        results[f"{name} {global_batch}x{seq_len}"] = {
            **rates,
            "share_of_memcpy": seconds["memcpy"] / seconds["assemble"],
            "microseconds_a_batch": seconds["assemble"] / steps * 1e6,
        }
    return results


class Repeated(Source):
    """Several copies of the standard library, each with another first line."""

    name = "repeated"
    licence = StdlibSource.licence
    summary = "the standard library several times"

    def __init__(self, times: int):
        self.times = times
        self.texts = list(StdlibSource().iter_documents())

    def iter_documents(self) -> Iterator[str]:
        return (f"# {number}\n{text}" for number in range(self.times) for text in self.texts)

    def size_bytes(self) -> int:
        return self.times * sum(len(text.encode()) for text in self.texts)

    def identity(self) -> str:
        return f"{self.times} {self.size_bytes()}"


def single_thread(tokenizer: Tokenizer, texts: list[str]) -> None:
    """The library alone on one thread, with ids as its own lists, which are discarded."""
    if isinstance(tokenizer, BpeTokenizer):
        for encoding in tokenizer._engine.encode_batch_fast(texts, add_special_tokens=False):
            _ = encoding.ids
    else:
        for text in texts:
            tokenizer._engine.encode_ordinary(text)  # type: ignore[attr-defined]


def processor_seconds() -> float:
    """Processor time of this process and its finished children [s]."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def preparation(folder: Path, times: dict[str, int], rounds: int, say: Say) -> dict[str, Any]:
    """End to end on `times` copies of the standard library; the round with the median share by wall time."""
    cores = available_cores()
    once = Repeated(1)
    if not (folder / "bpe").exists():
        train_bpe(once.texts[:300], 4096, "bpe-4096").save(folder / "bpe")
    results = {}
    for name in (str(folder / "bpe"), "gpt2"):
        try:
            tokenizer = load_tokenizer(name)
        except UserError as error:
            say(f"left out: {error}")
            continue
        source = Repeated(times[tokenizer.name])
        size = source.size_bytes() / 1e6
        found = []
        for number in range(rounds):
            alone = []
            for _ in range(2):
                begun = time.process_time()
                single_thread(tokenizer, once.texts)
                alone.append(once.size_bytes() / (time.process_time() - begun) / 1e6)
            begun, used = time.perf_counter(), processor_seconds()
            out = folder / f"out-{tokenizer.name}-{times[tokenizer.name]}-{number}"
            prepare(source, name, out, progress=False)
            clock, used = time.perf_counter() - begun, processor_seconds() - used
            shutil.rmtree(out)
            found.append(
                {
                    "text_mb": size,
                    "cores": cores,
                    "library_mb_per_s_one_thread": max(alone),
                    "mb_per_s": size / clock,
                    "share_by_processor_time": size / used / max(alone),
                    "share_by_clock": size / clock / (cores * max(alone)),
                }
            )
        found.sort(key=lambda row: row["share_by_clock"])
        shares = [row["share_by_clock"] for row in found]
        results[tokenizer.name] = {
            **found[rounds // 2],
            "rounds": rounds,
            "clock_range": [shares[0], shares[-1]],
        }
    return results


def measure(rounds: int, say: Say) -> dict[str, Any]:
    """Preparation, then the loader with the trainer's allocator settings; returns values for JSON."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread of the library is the unit of comparison
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results: dict[str, Any] = {"benchmark": "data", "machine": machine("cpu")}
        results["preparation"] = preparation(folder, {"bpe-4096": 9, "gpt2": 28}, rounds, say)
        results["loader"] = loader(folder)
    for shape, row in results["loader"].items():
        say(
            f"loader {shape:<13} {row['assemble_gb_per_s']:6.1f} GB/s, memcpy {row['memcpy_gb_per_s']:6.1f} GB/s: "
            f"{row['share_of_memcpy']:.2f}; {row['microseconds_a_batch']:.0f} us a batch"
        )
    for tokenizer, row in results["preparation"].items():
        say(
            f"prepare {row['text_mb']:4.0f} MB {tokenizer:<9} {row['mb_per_s']:6.2f} MB/s on {row['cores']} cores, "
            f"library alone {row['library_mb_per_s_one_thread']:.2f} MB/s a thread: "
            f"{row['share_by_clock']:.2f} by wall time, {row['share_by_processor_time']:.2f} by processor time"
        )
    return results
