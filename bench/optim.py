"""How long is an optimizer step? Ratios against torch's AdamW, all optimizers interleaved in one run.

    python bench/optim.py [--threads 2] [--rounds 21] [--sizes 20 88] [--out bench/results/optim_cpu.json]

Every round makes one step of each optimizer on the same parameters and gradients, so a slow moment of the machine hits
all of them. A step of AdamW or ADana moves at least 7 words a parameter (reads p, g, m, v; writes p, m, v), one with
tau 9; the bandwidth that this means is set against a plain copy and a triad measured in the same run. Pin the threads
(OMP_PROC_BIND=true OMP_PLACES=cores): AdamW starts its threads once for each tensor, and two on one core wait for each
other for milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from danalab.optim import AdamWDecayingWD, ADana, DanaMK4, DanaStar, DanaStarMK4

SIZES = {20: (16384, 384, 8), 88: (4096, 768, 12)}  # million parameters: vocabulary, width, layers

# name: (optimizer, words moved a parameter, reference, largest ratio to it that passes)
FUSED: dict[str, tuple[Callable[..., torch.optim.Optimizer], int, str, float]] = {
    "adamw fused": (lambda p: torch.optim.AdamW(p, lr=1e-6, fused=True), 7, "adamw fused", 1.0),
    "adana fused": (lambda p: ADana(p, lr=1e-6, omega=4.0, horizon=10000, fused=True), 7, "adamw fused", 1.10),
    "dana-mk4 fused": (lambda p: DanaMK4(p, lr=1e-6, omega=4.0, horizon=10000, fused=True), 7, "adamw fused", 1.10),
    "adamw-decaying-wd fused": (
        lambda p: AdamWDecayingWD(p, lr=1e-6, omega=4.0, horizon=10000, fused=True),
        *(7, "adamw fused", 1.10),
    ),
    "dana-star fused": (lambda p: DanaStar(p, lr=1e-6, omega=4.0, horizon=10000, fused=True), 9, "adamw fused", 1.35),
    "dana-star-mk4 fused": (
        lambda p: DanaStarMK4(p, lr=1e-6, omega=4.0, horizon=10000, fused=True),
        *(9, "adamw fused", 1.35),
    ),
}
UNFUSED: dict[str, tuple[Callable[..., torch.optim.Optimizer], int, str, float]] = {
    "adamw foreach": (lambda p: torch.optim.AdamW(p, lr=1e-6, foreach=True), 7, "adamw foreach", 1.0),
    "adana foreach": (lambda p: ADana(p, lr=1e-6, omega=4.0, horizon=10000, foreach=True), 7, "adamw foreach", 1.5),
    "adana eager": (lambda p: ADana(p, lr=1e-6, omega=4.0, horizon=10000, fused=False), 7, "adamw foreach", 0.0),
    "dana-star-mk4 foreach": (
        lambda p: DanaStarMK4(p, lr=1e-6, omega=4.0, horizon=10000, foreach=True),
        *(9, "adamw foreach", 0.0),
    ),
}


def transformer(vocab: int, width: int, layers: int) -> list[Tensor]:
    """Parameters with gradients in the shapes of a transformer: many small tensors among the large."""
    shapes: list[tuple[int, ...]] = [(vocab, width), (width,)]
    for _ in range(layers):
        shapes += [(width,), (3 * width, width), (64,), (64,), (width, width)]
        shapes += [(width,), (4 * width, width), (width, 4 * width)]
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator).mul_(0.02).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).mul_(1e-3)
    return params


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(size: int, rounds: int) -> dict[str, Any]:
    """Times of every optimizer at one size, and their ratios."""
    params = transformer(*SIZES[size])
    numel = sum(p.numel() for p in params)
    cases = FUSED | UNFUSED if size < 50 else FUSED
    optimizers = {name: case[0](params) for name, case in cases.items()}
    a, b, c = (torch.randn(numel) for _ in range(3))
    work: dict[str, Callable[[], Any]] = {name: optimizer.step for name, optimizer in optimizers.items()}
    work["copy"] = lambda: a.copy_(b)
    work["triad"] = lambda: torch.add(b, c, alpha=0.5, out=a)
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 2):
        names = list(work)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            took = seconds(work[name])
            if number >= 2:  # two rounds to warm up
                times[name].append(took)
    found: dict[str, Any] = {"parameters": numel, "tensors": len(params), "rounds": rounds}
    for name, words in (("copy", 2), ("triad", 3)):
        best = median(times.pop(name))
        found[name] = {"median_ms": best * 1e3, "gb_per_s": 4 * words * numel / best / 1e9}
    for name, (_, words, reference, bar) in cases.items():
        ratios = [mine / theirs for mine, theirs in zip(times[name], times[reference], strict=True)]
        typical = median(times[name])
        found[name] = {
            "median_ms": typical * 1e3,
            "best_ms": min(times[name]) * 1e3,
            "gb_per_s": 4 * words * numel / typical / 1e9,
            "reference": reference,
            "ratio_of_medians": typical / median(times[reference]),
            "median_ratio": median(ratios),
            "ratio_of_best": min(times[name]) / min(times[reference]),
            "bar": bar or None,
        }
    return found


def machine(threads: int) -> dict[str, Any]:
    """What a reader must know of the machine, and of how the process had it."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    policies = {os.SCHED_OTHER: "shared", os.SCHED_FIFO: "real-time: other processes wait"}
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "pinned": os.environ.get("OMP_PROC_BIND"),
        "scheduling": policies.get(os.sched_getscheduler(0), "other"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=21, help="interleaved rounds, at least 15 for a result")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[20, 88], choices=sorted(SIZES), help="million parameters"
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results: dict[str, Any] = {
        "question": "time of one optimizer step against torch.optim.AdamW, same parameters, interleaved",
        "machine": machine(args.threads),
        "torch": torch.__version__,
        "sizes": {},
    }
    for size in args.sizes:
        found = results["sizes"][f"{size}M"] = measure(size, args.rounds)
        print(f"\n{found['parameters'] / 1e6:.1f}M parameters in {found['tensors']} tensors, {args.threads} threads")
        print(f"copy {found['copy']['gb_per_s']:.1f} GB/s, triad {found['triad']['gb_per_s']:.1f} GB/s")
        print(f"{'optimizer':<24} {'ms':>8} {'GB/s':>6} {'ratio':>6} {'best':>6}   bar")
        for name, row in found.items():
            if isinstance(row, dict) and "reference" in row:
                bar = f"{row['bar']:.2f} x {row['reference']}" if row["bar"] else f"none (x {row['reference']})"
                print(
                    f"{name:<24} {row['median_ms']:8.2f} {row['gb_per_s']:6.1f} {row['median_ratio']:6.3f}"
                    f" {row['ratio_of_best']:6.3f}   {bar}"
                )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=2) + "\n")
        print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main()
