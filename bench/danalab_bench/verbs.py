"""The commands of `danalab bench`: speed as ratios to named peers, each measured in one run."""

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from danalab.errors import UserError
from danalab.train.config.flags import Answer, Count, JsonFlags, Positive, setting


@dataclass(frozen=True, kw_only=True)
class ResultFlags(JsonFlags):
    output: Path | None = setting(
        None,
        "JSON file to write, or a folder, in which the file is named after the benchmark, device "
        "and instruction set.",
    )

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

    def finish(self, found: dict[str, Any]) -> Answer:
        """Write the result to `output`; it is printed with --json."""
        from danalab.files import write_json

        if self.output is not None:
            file = self.file(found)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, found)
            self.say(f"written to {file}")
        return Answer(found, [])


@dataclass(frozen=True, kw_only=True)
class BenchFlags(ResultFlags):
    rounds: Count = setting(15, "Measurements, which alternate with the peer's.")
    threads: Count = setting(2, "CPU threads, each pinned to a core.")

    def start(self, module: str) -> Any:
        """Pin the threads, before torch is imported; returns a module of `danalab_bench`."""
        from danalab_bench.timing import pin_threads

        pin_threads(self.threads)
        return import_module(f"danalab_bench.{module}")


@dataclass(frozen=True, kw_only=True)
class DeviceFlags(BenchFlags):
    device: Literal["cpu", "cuda"] = setting("cpu", "Device to measure on.")


@dataclass(frozen=True, kw_only=True)
class OptimFlags(DeviceFlags):
    sizes: tuple[str, ...] = setting(
        (),
        "Million parameters: 0.02, 0.2, 1, 1.1, 20, 88, 124, 350, 600; or 500x2k, 500 tensors of "
        "2,000; default 0.2 1.1 500x2k 20 88 on a CPU, 20 88 600 on a GPU.",
    )
    rounds: Count = setting(21, "Measurements, which alternate with the peer's; use at least 15.")
    clock: Literal["wall", "processor"] = setting(
        "wall",
        "Time on the wall, or the processor time of a single thread, for a machine that others use, "
        "too (--threads 1).",
    )
    opts: tuple[str, ...] = setting(
        (),
        "Optimizers to time: names such as adana, adana:fused (or :eager, :moments), torch.Muon, or "
        "po.AdEMAMix of pytorch-optimizer. Default: a list of them; Muon and its relatives up to "
        "50M parameters on a CPU.",
    )


def optim(flags: OptimFlags) -> Answer:
    """Time of one optimizer step, against torch's fused AdamW; its memory bandwidth, against a plain copy."""
    bench = flags.start("optim")
    sizes = flags.sizes or bench.DEFAULT_SIZES[flags.device]
    of_thread = flags.clock == "processor"
    return flags.finish(
        bench.measure(flags.device, sizes, flags.rounds, flags.opts, flags.say, of_thread=of_thread)
    )


@dataclass(frozen=True, kw_only=True)
class TrainFlags(DeviceFlags):
    heads: tuple[Count, ...] = setting(
        (),
        "Sizes by --heads; default 2 and 4 (d_model 128, 256) on a CPU, Enoki's 3 to 24 and Qwen3's "
        "6 and 8 on a GPU.",
    )
    threads: tuple[Count, ...] = setting((1, 2), "CPU threads, each pinned to a core.")  # pyright: ignore[reportIncompatibleVariableOverride]


def train(flags: TrainFlags) -> Answer:
    """Tokens per second of `danalab train`, against a minimal training loop written by hand."""
    if flags.device == "cpu":
        from danalab_bench import train_cpu

        return flags.finish(
            train_cpu.measure(train_cpu.cells(flags.heads or (2, 4), flags.threads), flags.rounds, flags.say)
        )
    from danalab_bench.train import GPU_CASES, measure

    chosen = [case for case in GPU_CASES if not flags.heads or case.heads in flags.heads]
    if not chosen:
        known = ", ".join(map(str, sorted({case.heads for case in GPU_CASES})))
        raise UserError(f"--heads {' '.join(map(str, flags.heads))}: measured are {known}")
    return flags.finish(measure(chosen, flags.rounds, flags.say))


@dataclass(frozen=True, kw_only=True)
class CheckpointFlags(DeviceFlags):
    sizes: tuple[Positive, ...] = setting(
        (10.0, 50.0), "Million parameters; three times as many numbers are saved."
    )
    rounds: Count = setting(7, "Measurements, which alternate with the peer's.")
    folder: Path | None = setting(
        None, "A folder on the disk to measure; default the system's temporary folder."
    )


def checkpoint(flags: CheckpointFlags) -> Answer:
    """How long saving a checkpoint blocks training, against torch.save and torch's distributed checkpoint."""
    if not flags.sizes:
        raise UserError("--sizes: at least one is needed")
    if flags.folder is not None and not flags.folder.is_dir():
        raise UserError(f"--folder {flags.folder}: no such folder")
    bench = flags.start("checkpoint")
    return flags.finish(bench.measure(flags.sizes, flags.rounds, flags.folder, flags.say, flags.device))


@dataclass(frozen=True, kw_only=True)
class DataFlags(BenchFlags):
    rounds: Count = setting(3, "Measurements, which alternate with the peer's.")
    threads: Count = setting(1, "CPU threads of torch; preparation uses every core.")


def data(flags: DataFlags) -> Answer:
    """Speed of assembling batches, against memcpy, and of preparing text, against the tokenizer library alone."""
    bench = flags.start("data")
    return flags.finish(bench.measure(flags.rounds, flags.say))


@dataclass(frozen=True, kw_only=True)
class GenerateFlags(BenchFlags):
    batches: tuple[Count, ...] = setting((1, 8, 32), "Equal prompts that are decoded at a time.")
    tokens: Count = setting(128, "Tokens to decode for each prompt.")
    requests: int = setting(64, "Requests of the trace with random arrivals and mixed lengths; 0: no trace.")
    rounds: Count = setting(7, "Measurements, which alternate with the peer's.")


def generate(flags: GenerateFlags) -> Answer:
    """Speed of generating text on the CPU, against transformers: batches, and requests that arrive at random."""
    bench = flags.start("generate")
    return flags.finish(
        bench.measure(flags.batches, flags.tokens, max(0, flags.requests), flags.rounds, flags.say)
    )


VERBS = {
    "bench optim": (OptimFlags, optim),
    "bench train": (TrainFlags, train),
    "bench data": (DataFlags, data),
    "bench generate": (GenerateFlags, generate),
    "bench checkpoint": (CheckpointFlags, checkpoint),
}
