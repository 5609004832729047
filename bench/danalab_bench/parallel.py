"""Parallel modes side by side: time of a step, tokens per second and peak memory of `danalab train` in each.

Every mode trains the same model on the same global batch, in a job of its own; the modes alternate in each round. A
ratio is the median over rounds of the ratio to the first mode within a round. On CPUs all ranks share the cores, so the
times show the cost of communication, not a speed-up. Memory is the peak of rank 0: on GPUs as the allocator reports it,
on CPUs resident memory, torch itself included.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from danalab.errors import UserError
from danalab.train.system.device import machine
from danalab_bench.timing import Say, ratios, spread
from danalab_bench.train import random_tokens

MODES: dict[str, str] = {
    "single": "--nproc 1",
    "single, checkpointing full": "--nproc 1 --activation-checkpointing full",
    "single, checkpointing selective": "--nproc 1 --activation-checkpointing selective",
    "ddp": "--nproc {ranks} --distributed-backend ddp",
    "zero": "--nproc {ranks} --distributed-backend zero",
    "fsdp": "--nproc {ranks} --distributed-backend fsdp",
    "fsdp, checkpointing full": "--nproc {ranks} --distributed-backend fsdp --activation-checkpointing full",
    "fsdp, tp": "--nproc {ranks} --distributed-backend fsdp --tp-size {ranks}",
}
"""Name -> flags of `danalab train`."""
LOGGED = 5
"""Steps of a row of metrics; the first row of a job is left out."""


def measure(
    modes: Sequence[str],
    *,
    arch: str,
    heads: int,
    ranks: int,
    global_batch: int,
    seq_len: int,
    vocab_size: int,
    steps: int,
    rounds: int,
    device: str,
    say: Say,
) -> dict[str, Any]:
    """Measure each mode; see `danalab bench parallel`.

    Args:
        modes: keys of `MODES`.
        steps: per job, of which the first `LOGGED` are not counted.
    Raises:
        UserError: a job failed, with its message.
    """
    shape = {"arch": arch, "heads": heads, "global_batch": global_batch, "seq_len": seq_len, "vocab_size": vocab_size}
    jobs_of: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        data = random_tokens(scratch / "data", vocab_size, seq_len)
        common = [*(f"--{key.replace('_', '-')}={value}" for key, value in shape.items()), f"--data={data}"]
        common += [f"--iterations={steps}", f"--log-interval={LOGGED}", f"--device={device}", "--opt=adana"]
        common += ["--eval-interval=0", "--eval-batches=1", "--ckpt-interval=0", "--warmup-steps=1", "--lr=1e-4"]
        for number in range(rounds):
            for mode in modes:
                flags = MODES[mode].format(ranks=ranks).split()
                jobs_of[mode].append(_job([*common, *flags], scratch / f"{mode}-{number}".replace(", ", "-"), mode))
    first = jobs_of[modes[0]]
    rows = {mode: _row(jobs, first) for mode, jobs in jobs_of.items()}
    for mode, row in rows.items():
        say(line(mode, row, modes[0]))
    return {
        "benchmark": "parallel", "machine": machine(device), **shape, "ranks": ranks, "rounds": rounds,
        "steps": steps, "reference": modes[0], "modes": rows,
    }  # fmt: skip


def _job(flags: list[str], folder: Path, mode: str) -> dict[str, float]:
    """Train once; seconds of a step, tokens per second, and peak GiB of rank 0."""
    command = [sys.executable, "-m", "danalab", "train", *flags, f"--run-dir={folder}"]
    # Ranks that inherited the pinning of this process would share one core.
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_PROC_BIND", "OMP_PLACES")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise UserError(f"{mode}: danalab train ended with exit code {done.returncode}: {lines[-1]}")
    rows = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = [row for row in rows if "seconds_per_step" in row]
    counted = logged[1:] or logged
    return {
        "seconds": median(row["seconds_per_step"] for row in counted),
        "tokens_per_second": median(row["tokens_per_second"] for row in counted),
        "memory_gib": max(row["memory_gib"] for row in logged),
    }


def _row(jobs: list[dict[str, float]], first: list[dict[str, float]]) -> dict[str, Any]:
    return {
        **{key: spread([job[key] for job in jobs]) for key in ("seconds", "tokens_per_second", "memory_gib")},
        "time_over_reference": ratios([job["seconds"] for job in jobs], [job["seconds"] for job in first]),
    }


def line(mode: str, row: dict[str, Any], reference: str) -> str:
    """A row of the table as text."""
    return (
        f"{mode:<32}{1e3 * row['seconds']['median']:9.1f} ms/step {row['tokens_per_second']['median']:12,.0f} tokens/s"
        f"{row['memory_gib']['median']:8.2f} GiB{row['time_over_reference']['median']:7.2f} x {reference}"
    )
