"""Ratios against named peers, each measured in one run: the optimizer step, and more."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any, Literal

from danalab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class OptimFlags:
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the steps are made."""
    sizes: tuple[int, ...] = ()
    """Million parameters: 1, 20, 88 or 600; default 20 88, and 600 on a GPU."""
    rounds: int = 21
    """Interleaved rounds that count; 15 and more make a result."""
    opts: tuple[str, ...] = ()
    """Contenders: adana, adana:fused (or foreach, eager, graph), torch.Muon, po.AdEMAMix; default a list of them, with
    Muon's kin up to 50M parameters on a CPU."""
    threads: int = 2
    """CPU threads, each on a core of its own."""
    output: Path | None = None
    """JSON file to write."""
    json: bool = False
    """Print one JSON object on standard output."""


def optim(flags: OptimFlags) -> None:
    """Time of an optimizer step against torch's fused AdamW, and its bandwidth against a plain copy."""
    for name in ("rounds", "threads"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name} {getattr(flags, name)}: must be at least 1")
    from danalab.benchmarks.timing import pin_threads

    pin_threads(flags.threads)
    from danalab.benchmarks.optim import DEFAULT_SIZES, measure

    sizes = flags.sizes or DEFAULT_SIZES[flags.device]
    found = measure(flags.device, sizes, flags.rounds, flags.opts, partial(say, json=flags.json))
    finish(found, flags.output, json=flags.json)


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to train."""
    heads: tuple[int, ...] = ()
    """Sizes by --heads; default 3 on a CPU, Enoki's 3 to 24 and Qwen3's 6 and 8 on a GPU."""
    rounds: int = 15
    """Turns of each side that count."""
    threads: int = 2
    """CPU threads, each on a core of its own."""
    output: Path | None = None
    """JSON file to write."""
    json: bool = False
    """Print one JSON object on standard output."""


def train(flags: TrainFlags) -> None:
    """Tokens a second of the trainer against a loop written by hand, and what the trainer itself costs."""
    for name in ("rounds", "threads"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name} {getattr(flags, name)}: must be at least 1")
    from danalab.benchmarks.timing import pin_threads

    pin_threads(flags.threads)
    from danalab.benchmarks.train import CPU_CASES, GPU_CASES, measure

    cases = CPU_CASES if flags.device == "cpu" else GPU_CASES
    chosen = [case for case in cases if not flags.heads or case.heads in flags.heads]
    if not chosen:
        known = ", ".join(map(str, sorted({case.heads for case in cases})))
        raise UserError(f"--heads {' '.join(map(str, flags.heads))}: measured are {known}")
    finish(measure(flags.device, chosen, flags.rounds, partial(say, json=flags.json)), flags.output, json=flags.json)


@dataclass(frozen=True, kw_only=True)
class CheckpointFlags:
    sizes: tuple[float, ...] = (10.0, 50.0)
    """Million parameters; three times as many numbers are saved."""
    rounds: int = 7
    """Turns of each side that count."""
    folder: Path | None = None
    """A folder on the disk that is asked about; default the system's temporary folder."""
    threads: int = 2
    """CPU threads, each on a core of its own."""
    output: Path | None = None
    """JSON file to write."""
    json: bool = False
    """Print one JSON object on standard output."""


def checkpoint(flags: CheckpointFlags) -> None:
    """How long a checkpoint holds training up, and takes in all, against torch.save and torch's distributed one."""
    for name in ("rounds", "threads"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name} {getattr(flags, name)}: must be at least 1")
    if not flags.sizes or min(flags.sizes) <= 0:
        raise UserError(f"--sizes {' '.join(map(str, flags.sizes))}: positive numbers are expected")
    if flags.folder is not None and not flags.folder.is_dir():
        raise UserError(f"--folder {flags.folder}: no such folder")
    from danalab.benchmarks.timing import pin_threads

    pin_threads(flags.threads)
    from danalab.benchmarks.checkpoint import measure

    found = measure(flags.sizes, flags.rounds, flags.folder, partial(say, json=flags.json))
    finish(found, flags.output, json=flags.json)


@dataclass(frozen=True, kw_only=True)
class ResonanceFlags:
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to measure."""
    d_model: int | None = None
    """Width of both models; default 64 on a CPU, where mixing would else be lost among the products, 1024 on a GPU."""
    n_layers: int | None = None
    """Blocks; default 1 on a CPU, 4 on a GPU."""
    lengths: tuple[int, ...] = ()
    """Contexts [tokens]; default 1024 to 32768, doubling."""
    longest_attention: int | None = None
    """Longest context of a step of attention [tokens], which takes its time; default all."""
    rounds: int | None = None
    """Steps of each model at each length, the fastest of which counts; default 2 on a CPU, 5 on a GPU."""
    data: str | None = None
    """Data set that both are trained on, a folder or a source; without it only speed is measured."""
    seq_len: int | None = None
    """Context of that training [tokens]; default 512."""
    steps: int | None = None
    """Length of that training; default 200 [steps]."""
    batch_size: int = 8
    """Sequences of a step of that training."""
    lr: float = 3e-3
    """Peak learning rate of that training, for both."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of that training, one run of each model for each."""
    quick: bool = False
    """Does it all work? Tiny models, short contexts, few steps, in seconds; the numbers mean nothing."""
    threads: int = 1
    """CPU threads, each on a core of its own."""
    output: Path | None = None
    """JSON file to write; the figure goes beside it, as .svg and .png."""
    json: bool = False
    """Print one JSON object on standard output."""


def resonance(flags: ResonanceFlags) -> None:
    """Oscillators against attention of one size: time and memory by length, decoding by position, loss if trained."""
    given = {name: getattr(flags, name) for name in ("d_model", "n_layers", "lengths", "longest_attention", "rounds",
                                                     "seq_len", "steps")}  # fmt: skip
    for name in ("d_model", "n_layers", "longest_attention", "rounds", "seq_len", "steps", "batch_size", "threads"):
        if (value := getattr(flags, name)) is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    if flags.lengths and min(flags.lengths) < 1:
        raise UserError(f"--lengths {' '.join(map(str, flags.lengths))}: must be at least 1")
    if not flags.seeds or not flags.lr > 0:
        raise UserError("--seeds needs at least one, and --lr must be positive")
    from danalab.benchmarks.timing import pin_threads

    pin_threads(flags.threads)
    from danalab.benchmarks.resonance import QUICK, Settings, measure
    from danalab.report.figures.drawing import save_figure
    from danalab.report.figures.resonance import resonance_figure

    chosen: dict[str, Any] = {"d_model": 64, "n_layers": 1, "rounds": 2} if flags.device == "cpu" else {
        "d_model": 1024, "n_layers": 4, "rounds": 5}  # fmt: skip
    chosen |= {"lengths": tuple(2**k for k in range(10, 16)), "seq_len": 512, "steps": 200}
    chosen |= QUICK if flags.quick else {}
    chosen |= {name: value for name, value in given.items() if value}
    chosen.setdefault("longest_attention", max(chosen["lengths"]))
    settings = Settings(
        device=flags.device, data=flags.data, batch_size=flags.batch_size, lr=flags.lr, seeds=flags.seeds, **chosen
    )
    found = measure(settings, partial(say, json=flags.json))
    if flags.output is not None:
        flags.output.parent.mkdir(parents=True, exist_ok=True)
        save_figure(resonance_figure(found), flags.output.with_suffix(""))
    finish(found, flags.output, json=flags.json)


def say(line: str, *, json: bool) -> None:
    """A line for people as soon as it is known; on standard error where standard output is for a program."""
    print(line, file=sys.stderr if json else sys.stdout, flush=True)


def finish(found: dict[str, Any], output: Path | None, *, json: bool) -> None:
    """Write the result to `output`, and print it where a program asked for it."""
    from danalab.files import write_json

    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, found)
        say(f"written to {output}", json=json)
    if json:
        print(dumps(found))


@dataclass(frozen=True, kw_only=True)
class MoeFlags:
    rounds: int = 7
    """Interleaved rounds that count."""
    threads: int = 2
    """CPU threads, each on a core of its own."""
    output: Path | None = None
    """JSON file to write."""
    json: bool = False
    """Print one JSON object on standard output."""


def moe(flags: MoeFlags) -> None:
    """Forward and backward of experts against Python loops over them, on the CPU."""
    for name in ("rounds", "threads"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name} {getattr(flags, name)}: must be at least 1")
    from danalab.benchmarks.timing import pin_threads

    pin_threads(flags.threads)
    from danalab.benchmarks.moe import CASES, measure

    finish(measure(CASES, flags.rounds, partial(say, json=flags.json)), flags.output, json=flags.json)


SUBVERBS = {
    "optim": (OptimFlags, optim),
    "train": (TrainFlags, train),
    "resonance": (ResonanceFlags, resonance),
    "checkpoint": (CheckpointFlags, checkpoint),
    "moe": (MoeFlags, moe),
}
