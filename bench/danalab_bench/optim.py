"""Time of an optimizer step: ratios to torch's fused AdamW, and bandwidth relative to a plain copy.

For each contender a series of rounds alternates the contender, the reference, its peer if any, and a copy of as many
floats as the model has. Only these exist at the same time, so memory does not grow with the number of contenders. A
step moves at least

    bytes = 3 x parameters (gradient read, parameter read and written) + 2 x state (read and written)

and the resulting bandwidth is compared with that of the copy in the same rounds. It can exceed the copy's: on a CPU a
store first reads its cache line, which is not counted for the copy and is needed by an in-place update anyway. The
reference is also compared with itself: the deviation of that ratio from 1 is the noise of the measurement.
"""

import gc
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab_bench.contenders import (
    MATRIX_PEER,
    REFERENCE,
    TARGETS,
    Contender,
    contender,
    is_matrix_contender,
)
from danalab_bench.timing import (
    Say,
    Work,
    clock_of,
    interleaved,
    machine,
    memory_bytes,
    ratios,
    spread,
    thread_clock,
)

SIZES: dict[str, tuple[int, int, int]] = {
    "0.02": (256, 32, 1),
    "0.2": (1024, 64, 3),
    "1": (1024, 128, 4),
    "1.1": (1024, 160, 3),
    "20": (16384, 384, 8),
    "88": (4096, 768, 12),
    "124": (50304, 768, 12),
    "350": (50304, 1024, 24),
    "600": (50304, 1536, 18),
}
"""Million parameters: vocabulary, width, layers."""

MANY = "500x2k"
"""The size that is no transformer: 500 tensors of 2,000 elements."""

DEFAULT_SIZES = {"cpu": ("0.2", "1.1", MANY, "20", "88"), "cuda": ("20", "88", "600")}

DEFAULTS = (REFERENCE, "adana", "dana-mk4", "dana-star", "dana-star-mk4", "ademamix")
"""Contenders of sizes up to `SMALL` million parameters: with default settings, as a user gets them."""
SMALL = 2

ELEMENTWISE = (
    REFERENCE,
    *("adana:fused", "dana-mk4:fused", "adamw-decaying-wd:fused", "dana-star:fused", "dana-star-mk4:fused"),
    *("ademamix:fused", "auto-dana", "sign-dana", "adana:eager", "adana:moments"),
    *("po.Lion", "po.ADOPT", "po.MARS"),
)
MATRICES = (MATRIX_PEER, "muon", "d-muon")

IDLE_LOAD = 1.5
"""Load average above which a result says that the machine was shared."""

MATRICES_UP_TO = {"cpu": 50, "cuda": 10_000}
"""Million parameters up to which orthogonalisation is measured by default: beyond, a step on a CPU takes seconds."""


def default_contenders(device: str, size: Any) -> tuple[str, ...]:
    """The default contenders of a size."""
    if str(size) == MANY or float(size) <= SMALL:
        return DEFAULTS
    return ELEMENTWISE + (MATRICES if float(size) <= MATRICES_UP_TO[device] else ())


def measure(
    device: str,
    sizes: Sequence[Any],
    rounds: int,
    names: Sequence[str] = (),
    report: Say = lambda line: None,
    *,
    of_thread: bool = False,
) -> dict[str, Any]:
    """Times of all contenders at all sizes.

    Args:
        device: "cpu" or "cuda".
        sizes: million parameters, keys of `SIZES`, or `MANY`.
        rounds: interleaved rounds that count, at least 1; 15 or more for a result.
        names: contenders; none: `default_contenders`.
        of_thread: measure the processor time of the one thread that computes, not the time on the wall.
    Returns:
        Values for JSON: question, machine, and for each size the copy's bandwidth and one row per contender; `shared`
        says so where other processes were running.
    """
    if of_thread and (device != "cpu" or torch.get_num_threads() != 1):
        raise UserError("--clock processor: it counts one thread on a CPU; add --threads 1")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here")
    sizes = [str(size) for size in sizes]
    for size in sizes:
        if size not in (*SIZES, MANY):
            raise UserError(f"--sizes {size}: known are {', '.join(SIZES)} (million parameters) and {MANY}")
    chosen = {size: [contender(name) for name in names or default_contenders(device, size)] for size in sizes}
    own, clock = machine(device), thread_clock if of_thread else clock_of(device)
    busy = own["load_average"] > IDLE_LOAD
    return {
        "benchmark": "optim",
        "question": "time of one optimizer step against torch.optim.AdamW(fused=True), same parameters, interleaved",
        "machine": own,
        "device": device,
        "rounds": rounds,
        **({"clock": "processor time of one thread", "threads": 1} if of_thread else {}),
        **({"shared": f"the machine was shared: load average {own['load_average']:.1f}"} if busy else {}),
        "sizes": {
            size if size == MANY else f"{size}M": _measure_size(
                device, size, rounds, chosen[size], report, clock
            )
            for size in sizes
        },
    }


def transformer(vocab: int, width: int, layers: int, device: str = "cpu") -> list[Tensor]:
    """float32 parameters with gradients in the shapes of a transformer, small tensors included.

    The first is the embedding [vocab, width].
    """
    shapes: list[tuple[int, ...]] = [(vocab, width), (width,)]
    for _ in range(layers):
        shapes += [(width,), (3 * width, width), (64,), (64,), (width, width)]
        shapes += [(width,), (4 * width, width), (width, 4 * width)]
    return parameters(shapes, device)


def parameters(shapes: Sequence[tuple[int, ...]], device: str = "cpu") -> list[Tensor]:
    """float32 parameters with gradients."""
    generator = torch.Generator(device).manual_seed(0)
    draw = {"generator": generator, "device": device}
    params = [torch.randn(shape, **draw).mul_(0.02).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, **draw).mul_(1e-3)
    return params


def _measure_size(
    device: str,
    size: str,
    rounds: int,
    contenders: Sequence[Contender],
    report: Say,
    clock: Callable[[Work], float],
) -> dict[str, Any]:
    vocab, width, layers = SIZES.get(size, (0, 0, 0))
    numel = (
        vocab * width + width + layers * (12 * width * width + 2 * width + 128)
        if size != MANY
        else 500 * 2000
    )
    needed = (
        4 * numel * 14
    )  # parameters, gradients, two for the copy, and the states of the three that exist at once
    if needed > memory_bytes(device):
        raise UserError(
            f"--sizes {size}: needs about {needed / 2**30:.0f} GiB, {device} has"
            f" {memory_bytes(device) / 2**30:.0f} GiB; leave it out"
        )
    params = (
        transformer(vocab, width, layers, device) if size != MANY else parameters([(2000,)] * 500, device)
    )
    report(f"{numel / 1e6:.1f}M parameters in {len(params)} tensors, {rounds} rounds")
    report(HEADINGS)
    rows: dict[str, dict[str, Any]] = {}
    copies: list[float] = []
    for entry in contenders:
        row, copy = _duel(entry, params, numel, rounds, device, clock)
        copies.append(copy)
        rows[entry.name] = row
        report(line(entry.name, row))
    return {
        "parameters": numel,
        "tensors": len(params),
        "shape": {"vocab": vocab, "width": width, "layers": layers},
        "copy_gb_per_s": median(copies),
        "results": rows,
    }


def _duel(
    entry: Contender,
    params: list[Tensor],
    numel: int,
    rounds: int,
    device: str,
    clock: Callable[[Work], float],
) -> tuple[dict[str, Any], float]:
    """The contender's row, and the bandwidth of the copy in the same rounds [GB/s]."""
    opponents = {REFERENCE, *([entry.peer] if entry.peer else [])} - {entry.name}
    work = {name: contender(name).prepare(params)[1] for name in sorted(opponents)}
    optimizer, work["contender"] = entry.prepare(params)
    if entry.name == REFERENCE:  # against itself
        work[REFERENCE] = contender(REFERENCE).prepare(params)[1]
    a, b = (torch.ones(numel, device=device) for _ in range(2))
    work["copy"] = lambda: a.copy_(b)
    times = interleaved(work, rounds, clock)

    mine = times["contender"]
    state = _state_bytes(optimizer)
    moved = 3 * sum(4 * p.numel() for group in optimizer.param_groups for p in group["params"]) + 2 * state
    copy = 8 * numel / median(times["copy"]) / 1e9
    rate = moved / median(mine) / 1e9
    row: dict[str, Any] = {
        "ms": spread([1e3 * took for took in mine]),
        "best_ms": 1e3 * min(mine),
        "state_bytes_per_parameter": state / numel,
        "gb_per_s": rate,
        "share_of_copy": rate / copy,
        "ratio": ratios(mine, times[REFERENCE]),
        "ratio_of_best": min(mine) / min(times[REFERENCE]),
        "target": TARGETS.get(entry.name),
    }
    if entry.peer:
        row["peer"], row["ratio_to_peer"] = entry.peer, ratios(mine, times[entry.peer])
    if is_matrix_contender(entry):
        del row["gb_per_s"], row["share_of_copy"]  # limited by matrix products, not by memory
    del work, optimizer
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return row, copy


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    tensors = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
    ]
    return sum(value.numel() * value.element_size() for value in tensors)


HEADINGS = f"{'optimizer':<26}{'ms':>9}{'x AdamW':>9}{'quartiles':>13}{'GB/s':>7}{'of copy':>9}   note"


def line(name: str, row: dict[str, Any]) -> str:
    """A row of the table for people."""
    ratio = row["ratio"]
    quartiles = f"{ratio['q1']:.2f}-{ratio['q3']:.2f}"
    rate = f"{row['gb_per_s']:7.1f}{row['share_of_copy']:9.0%}" if "gb_per_s" in row else f"{'':16}"
    notes = [f"aim {row['target']:.2f}"] if row["target"] else []
    if "peer" in row:
        notes.append(f"{row['ratio_to_peer']['median']:.2f} x {row['peer']}")
    if name == REFERENCE:
        notes.append("against itself")
    text = f"{name:<26}{row['ms']['median']:9.2f}{ratio['median']:9.3f}{quartiles:>13}{rate}   {', '.join(notes)}"
    return text.rstrip()
