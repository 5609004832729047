"""The commands of `danalab bench`: speed as ratios to named peers, each measured in one run."""

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from danalab.cli._shared.options import JsonFlags
from danalab.errors import UserError, nearest
from danalab.train.config.fields import Count, PathText, Positive


@dataclass(frozen=True, kw_only=True)
class ResultFlags(JsonFlags):
    output: Path | None = None
    """JSON file to write, or a folder, in which the file is named after the benchmark, device and instruction set."""

    def say(self, line: str) -> None:
        """Print a line of progress; with --json to standard error."""
        print(line, file=sys.stderr if self.json else sys.stdout, flush=True)

    def file(self, found: dict[str, Any]) -> Path:
        """The file for a result: in a folder named for verb and device, and for instructions other than AVX-512."""
        assert self.output is not None
        if not self.output.is_dir():
            return self.output
        machine = found["machine"] or {}
        level = machine.get("isa", "") if machine.get("target", "native") == "native" else machine["target"]
        suffix = "" if "gpu" in machine or level == "x86-64-v4" else f"_{level.removeprefix('x86-64-')}"
        return self.output / f"{found['benchmark']}_{'cuda' if 'gpu' in machine else 'cpu'}{suffix}.json"

    def keep(self, found: dict[str, Any]) -> None:
        """Write the result to `output`."""
        from danalab.files import write_json

        if self.output is not None:
            file = self.file(found)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, found)

    def finish(self, found: dict[str, Any]) -> None:
        """Write the result to `output`, and print it with --json."""
        self.keep(found)
        if self.output is not None:
            self.say(f"written to {self.file(found)}")
        self.print_json(found)


@dataclass(frozen=True, kw_only=True)
class BenchFlags(ResultFlags):
    rounds: Count = 15
    """Measurements, which alternate with the peer's."""
    threads: Count = 2
    """CPU threads, each pinned to a core."""

    def start(self, module: str) -> Any:
        """Pin the threads, before torch is imported; returns a module of `danalab_bench`."""
        from danalab_bench.timing import pin_threads

        pin_threads(self.threads)
        return import_module(f"danalab_bench.{module}")


@dataclass(frozen=True, kw_only=True)
class DeviceFlags(BenchFlags):
    device: Literal["cpu", "cuda"] = "cpu"
    """Device to measure on."""


@dataclass(frozen=True, kw_only=True)
class OptimFlags(DeviceFlags):
    sizes: tuple[str, ...] = ()
    """Million parameters: 0.02, 0.2, 1, 1.1, 20, 88, 124, 350, 600; or 500x2k, 500 tensors of 2,000; default 0.2 1.1
    500x2k 20 88 on a CPU, 20 88 600 on a GPU."""
    rounds: Count = 21
    """Measurements, which alternate with the peer's; use at least 15."""
    clock: Literal["wall", "processor"] = "wall"
    """Time on the wall, or the processor time of a single thread, for a machine that others use, too (--threads 1)."""
    opts: tuple[str, ...] = ()
    """Optimizers to time: names such as adana, adana:fused (or :foreach, :eager, :graph), torch.Muon, or po.AdEMAMix of
    pytorch-optimizer. Default: a list of them; Muon and its relatives up to 50M parameters on a CPU."""


def optim(flags: OptimFlags) -> None:
    """Time of one optimizer step, against torch's fused AdamW; its memory bandwidth, against a plain copy."""
    bench = flags.start("optim")
    sizes = flags.sizes or bench.DEFAULT_SIZES[flags.device]
    of_thread = flags.clock == "processor"
    flags.finish(bench.measure(flags.device, sizes, flags.rounds, flags.opts, flags.say, of_thread=of_thread))


@dataclass(frozen=True, kw_only=True)
class TrainFlags(DeviceFlags):
    heads: tuple[Count, ...] = ()
    """Sizes by --heads; default 2 and 4 (d_model 128, 256) on a CPU, Enoki's 3 to 24 and Qwen3's 6 and 8 on a GPU."""
    threads: tuple[Count, ...] = (1, 2)  # pyright: ignore[reportIncompatibleVariableOverride]
    """CPU threads, each pinned to a core."""


def train(flags: TrainFlags) -> None:
    """Tokens per second of `danalab train`, against a minimal training loop written by hand."""
    if flags.device == "cpu":
        from danalab_bench import train_cpu

        flags.finish(train_cpu.measure(train_cpu.cells(flags.heads or (2, 4), flags.threads), flags.rounds, flags.say))
        return
    from danalab_bench.train import GPU_CASES, measure

    chosen = [case for case in GPU_CASES if not flags.heads or case.heads in flags.heads]
    if not chosen:
        known = ", ".join(map(str, sorted({case.heads for case in GPU_CASES})))
        raise UserError(f"--heads {' '.join(map(str, flags.heads))}: measured are {known}")
    flags.finish(measure(chosen, flags.rounds, flags.say))


@dataclass(frozen=True, kw_only=True)
class CheckpointFlags(DeviceFlags):
    sizes: tuple[Positive, ...] = (10.0, 50.0)
    """Million parameters; three times as many numbers are saved."""
    rounds: Count = 7
    """Measurements, which alternate with the peer's."""
    folder: Path | None = None
    """A folder on the disk to measure; default the system's temporary folder."""


def checkpoint(flags: CheckpointFlags) -> None:
    """How long saving a checkpoint blocks training, against torch.save and torch's distributed checkpoint."""
    if not flags.sizes:
        raise UserError("--sizes: at least one is needed")
    if flags.folder is not None and not flags.folder.is_dir():
        raise UserError(f"--folder {flags.folder}: no such folder")
    bench = flags.start("checkpoint")
    flags.finish(bench.measure(flags.sizes, flags.rounds, flags.folder, flags.say, flags.device))


@dataclass(frozen=True, kw_only=True)
class ResonanceFlags(DeviceFlags):
    d_model: Count | None = None
    """Width of both models; default 64 on a CPU, so that mixing dominates the time, 1024 on a GPU."""
    n_layers: Count | None = None
    """Blocks; default 1 on a CPU, 4 on a GPU."""
    lengths: tuple[Count, ...] = ()
    """Contexts [tokens]; default 1024 to 32768, doubling."""
    longest_attention: Count | None = None
    """Longest context of attention, which is slow [tokens]; default all."""
    rounds: Count | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Steps of each model at each length, the fastest of which counts; default 2 on a CPU, 5 on a GPU."""
    data: PathText | None = None
    """Data set to train both on, a folder or a source; default: measure speed only."""
    seq_len: Count | None = None
    """Context of that training [tokens]; default 512."""
    steps: Count | None = None
    """Length of that training; default 200 [steps]."""
    batch_size: Count = 8
    """Sequences per step of that training."""
    lr: Positive = 3e-3
    """Peak learning rate of that training, for both."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of that training, one run of each model for each."""
    quick: bool = False
    """A smoke test in seconds: tiny models, short contexts, few steps; the numbers mean nothing."""
    threads: Count = 1
    """CPU threads, each pinned to a core."""
    output: Path | None = None
    """JSON file to write, or a folder, as for the other benchmarks; the figure lies next to it, as .svg and .png."""


def resonance(flags: ResonanceFlags) -> None:
    """Time and memory of the resonance model, against attention, as texts grow; with --data also both losses."""
    names = ("d_model", "n_layers", "lengths", "longest_attention", "rounds", "seq_len", "steps")
    if not flags.seeds:
        raise UserError("--seeds: at least one is needed")
    bench = flags.start("resonance")
    from danalab.report.figures.drawing import save_figure

    on_cpu = flags.device == "cpu"
    chosen: dict[str, Any] = {"d_model": 64 if on_cpu else 1024, "n_layers": 1 if on_cpu else 4}
    chosen |= {"rounds": 2 if on_cpu else 5, "lengths": tuple(2**k for k in range(10, 16))}
    chosen |= {"seq_len": 512, "steps": 200}
    chosen |= bench.QUICK if flags.quick else {}
    chosen |= {name: value for name in names if (value := getattr(flags, name))}
    chosen.setdefault("longest_attention", max(chosen["lengths"]))
    given = {name: getattr(flags, name) for name in ("device", "data", "batch_size", "lr", "seeds")}
    found = bench.measure(bench.MixerComparison(**given, **chosen), flags.say)
    if flags.output is not None:
        file = flags.file(found)
        file.parent.mkdir(parents=True, exist_ok=True)
        save_figure(bench.resonance_figure(found), file.with_suffix(""))
    flags.finish(found)


@dataclass(frozen=True, kw_only=True)
class MoeFlags(BenchFlags):
    rounds: Count = 7
    """Measurements, which alternate with the peer's."""


def moe(flags: MoeFlags) -> None:
    """Time of a layer of experts (MoE), against Python loops over the experts, on the CPU."""
    bench = flags.start("moe")
    flags.finish(bench.measure(bench.CASES, flags.rounds, flags.say))


@dataclass(frozen=True, kw_only=True)
class ParallelFlags(DeviceFlags):
    modes: tuple[str, ...] = ()
    """Modes, e.g. single ddp "fsdp, tp"; default all."""
    arch: str = "enoki"
    """Architecture."""
    heads: Count = 4
    """Size of the model."""
    nproc: Count = 2
    """Ranks of the modes with several; heads must be a multiple of them for tensor parallelism."""
    global_batch: Count = 8
    """Sequences per step, of all ranks."""
    seq_len: Count = 256
    """Context [tokens]."""
    vocab_size: Count = 4096
    """Vocabulary."""
    steps: Count = 20
    """Steps of each job."""
    rounds: Count = 3
    """Jobs of each mode."""


def parallel(flags: ParallelFlags) -> None:
    """Time, tokens per second and peak memory of each parallel mode (ddp, zero, fsdp, ...) on this machine."""
    bench = flags.start("parallel")
    for mode in flags.modes:
        if mode not in bench.MODES:
            known = "; ".join(bench.MODES)
            raise UserError(f"--modes: unknown mode '{mode}'{nearest(mode, bench.MODES)}; known: {known}")
    modes = flags.modes or tuple(bench.MODES)
    if flags.heads % flags.nproc and any("tp" in mode for mode in modes):
        raise UserError(f"--heads {flags.heads}: tensor parallelism needs a multiple of --nproc {flags.nproc}")
    names = ("arch", "heads", "global_batch", "seq_len", "vocab_size", "steps", "rounds", "device")
    settings = {name: getattr(flags, name) for name in names}
    flags.finish(bench.measure(modes, ranks=flags.nproc, say=flags.say, **settings))


@dataclass(frozen=True, kw_only=True)
class GenerateFlags(BenchFlags):
    batches: tuple[Count, ...] = (1, 8, 32)
    """Equal prompts that are decoded at a time."""
    tokens: Count = 128
    """Tokens to decode for each prompt."""
    requests: int = 64
    """Requests of the trace with random arrivals and mixed lengths; 0: no trace."""
    rounds: Count = 7
    """Measurements, which alternate with the peer's."""


def generate(flags: GenerateFlags) -> None:
    """Speed of generating text on the CPU, against transformers: batches, and requests that arrive at random."""
    bench = flags.start("generate")
    flags.finish(bench.measure(flags.batches, flags.tokens, max(0, flags.requests), flags.rounds, flags.say))


@dataclass(frozen=True, kw_only=True)
class GpuFlags(ResultFlags):
    sections: tuple[str, ...] = ()
    """Sections: tests, optim, train, decode, checkpoint, resonance; default all, in this order."""
    seconds: Positive | None = None
    """Time of all sections together [s]: one for which too little is left is dropped, one that is cut off keeps its
    rows; default 470, an hour for a dry run."""
    dry_run: bool = False
    """Every line of it in two minutes on a CPU that says that it is a GPU: tiny sizes; the numbers mean nothing."""


def gpu(flags: GpuFlags) -> int:
    """Test and time one GPU in eight minutes: kernels, optimizer steps, training, decoding, checkpoints."""
    from danalab_bench.gpu_check import SECTIONS, failures, measure

    for name in flags.sections:
        if name not in SECTIONS:
            raise UserError(f"--sections {name}{nearest(name, SECTIONS)}: known are {', '.join(SECTIONS)}")
    if not flags.dry_run:
        import torch

        if not torch.cuda.is_available():
            raise UserError("torch sees no CUDA device here; --dry-run needs none")
    seconds = flags.seconds or (3600.0 if flags.dry_run else 470.0)
    found = measure(flags.sections or tuple(SECTIONS), seconds, flags.dry_run, flags.say, flags.keep)
    flags.finish(found)
    bad = failures(found)
    for line in bad:
        flags.say(f"failed: {line}")
    return 1 if bad else 0


SUBVERBS = {
    "optim": (OptimFlags, optim),
    "train": (TrainFlags, train),
    "resonance": (ResonanceFlags, resonance),
    "checkpoint": (CheckpointFlags, checkpoint),
    "moe": (MoeFlags, moe),
    "generate": (GenerateFlags, generate),
    "parallel": (ParallelFlags, parallel),
    "gpu": (GpuFlags, gpu),
}
