"""The sections of `danalab bench gpu`: each is a series of small tasks, the most important ones first.

    tests        tests/gpu: kernels against float64, captures, parallel modes of one rank, resume, decoding
    optim        an optimizer step against torch's fused AdamW and torch's Muon, with its bandwidth
    train        tokens per second and MFU of the trainer, in bfloat16, with compiled blocks and without
    decode       tokens per second of the engine, by batch
    checkpoint   time that a checkpoint blocks training
    resonance    a step of oscillators and of attention, by context

`python -m danalab_bench.gpu_sections SECTION FILE full|dry END` runs one section, which is ended at that
time [seconds since 1970]. A task that fails is a row with
its error, and the next one follows; FILE is written after each. `dry`: the same lines at tiny sizes, on a CPU that says
that it is a GPU (`danalab_bench.gpu_pretend`); the numbers mean nothing.
"""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from danalab.errors import UserError
from danalab.files import write_json
from danalab.inference import Engine, Request, SamplingParameters
from danalab.models import Decoder, ModelConfig, build_model
from danalab.scaling import dimensions
from danalab.train.system.device import machine
from danalab_bench import checkpoint, environment, optim, resonance, train
from danalab_bench.gpu_pretend import pretend_gpu
from danalab_bench.timing import interleaved, waiting_clock
from danalab_bench.train import BLOCK, TrainingCase, random_tokens, trainer_alone

ROOT = Path(__file__).parents[2]
Task = tuple[str, Callable[[], dict[str, Any]]]
"""(label, the measurement, which returns values for JSON)."""


def _tests(dry: bool, end: float) -> Iterator[Task]:
    if (folder := ROOT / "tests" / "gpu").is_dir():
        yield "tests/gpu", partial(_run_tests, folder, dry, end - 10)


def _run_tests(folder: Path, dry: bool, end: float) -> dict[str, Any]:
    """The tests of a folder, as far as they come until `end`."""
    command = [sys.executable, "-m", "pytest", "-v", "--tb=line", "-o", "addopts=", "--import-mode=importlib"]
    command += ["-p", "no:cacheprovider", "-m", "gpu and not slow" if dry else "gpu", str(folder)]
    if importlib.util.find_spec("xdist"):
        command += ["-n", "2" if dry else "6"]
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    child = environment(PYTHONPATH=path, **({"PRETEND_GPU": "1"} if dry else {}))
    done: dict[str, set[str]] = {"PASSED": set(), "FAILED": set(), "SKIPPED": set(), "ERROR": set()}
    lines: list[str] = []
    process = subprocess.Popen(command, cwd=ROOT, env=child, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, start_new_session=True)  # fmt: skip
    clock = threading.Timer(end - time.time(), os.killpg, (process.pid, signal.SIGKILL))  # with the processes of xdist
    clock.start()
    assert process.stdout is not None
    for text in process.stdout:
        lines.append(text.rstrip())
        test, outcome = (re.search(pattern, text) for pattern in (r"\S+\.py::\S+", rf"\b({'|'.join(done)})\b"))
        if test and outcome:
            done[outcome[0]].add(test[0].removeprefix("tests/gpu/"))
    clock.cancel()
    code = process.wait()
    failed = sorted(done["FAILED"] | done["ERROR"])
    if code:
        print("\n".join(lines[-60:]))
    reason = "; ".join(failed) or (f"pytest ended with exit code {code}" if code else "")
    row = {"passed": len(done["PASSED"]), "skipped": len(done["SKIPPED"]), "failed": failed}
    return {**row, **({"error": reason} if reason else {})}


CONTENDERS = (
    *("adana:fused", "dana-star-mk4:fused", "dana-muon", "torch.Muon", "adana:graph", "adamw:fused"),
    *("dana-star-mk4:graph", "muon", "adana:bf16+8", "adana:foreach"),
)
ROUNDS = 15


def _optim(dry: bool, end: float) -> Iterator[Task]:
    for size in ("0.02",) if dry else ("124", "350"):
        for name in CONTENDERS:
            yield f"{size}M {name}", partial(_optim_step, size, name, 1 if dry else ROUNDS)


def _optim_step(size: str, name: str, rounds: int) -> dict[str, Any]:
    (cell,) = optim.measure("cuda", [size], rounds, [name])["sizes"].values()
    (row,) = cell["results"].values()
    return {"optimizer": name, "parameters": cell["parameters"], "copy_gb_per_s": cell["copy_gb_per_s"], **row}


def _train(dry: bool, end: float) -> Iterator[Task]:
    size: tuple[Any, ...] = ("enoki", 2, 64, 2, 16) if dry else ("enoki", 12, 50304, 16, 2048)  # 141M parameters
    for compiled in (True, False):
        case = TrainingCase(*size, compile=compiled)
        label = f"{case.arch} {case.heads} heads, {'compiled' if compiled else 'eager'}"
        yield label, partial(_train_case, case, dry)


def _train_case(case: TrainingCase, dry: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        data = random_tokens(Path(scratch) / "data", case.vocab_size, case.seq_len)
        rounds, block = (1, 1) if dry else (3, BLOCK)
        return {**asdict(case), **trainer_alone(case, data, Path(scratch), rounds, "cuda", block)}


def _resonance(dry: bool, end: float) -> Iterator[Task]:
    for length in (64, 128) if dry else (4096, 8192, 16384, 32768):
        sizes: dict[str, Any] = (
            {"d_model": 32, "n_layers": 1, "rounds": 1} if dry else {"d_model": 1024, "n_layers": 4, "rounds": 3}
        )
        settings = resonance.MixerComparison(lengths=(length,), longest_attention=length, device="cuda", **sizes)
        yield f"{length} tokens", partial(_resonance_at, settings)


def _resonance_at(settings: resonance.MixerComparison) -> dict[str, Any]:
    measured = resonance.speed(settings, lambda line: None)
    return {
        name: {"params": measured[name]["params"], **measured[name]["rows"][0]} for name in ("resonance", "attention")
    }


def _decode(dry: bool, end: float) -> Iterator[Task]:
    if dry:
        config = ModelConfig("enoki", 32, 1, 2, 16, 64, 64, 32)
    else:
        size = dimensions("enoki", 12, 50304)
        config = ModelConfig(
            "enoki", size.d_model, size.n_layers, size.n_heads, size.head_dim, size.mlp_dim, size.vocab_size, 2048
        )
    model = build_model(config, device="cuda", dtype=torch.bfloat16).eval()
    for batch in (1, 2) if dry else (1, 8, 64):
        yield f"batch {batch}", partial(_decode_batch, model, batch, 2 if dry else 128, 1 if dry else 3)


def _decode_batch(model: Decoder, batch: int, tokens: int, rounds: int) -> dict[str, Any]:
    """`tokens` tokens after prompts of as many."""
    engine = Engine(model, max_batch_size=batch, prefix_reuse=False)
    draw = torch.Generator().manual_seed(batch)
    prompts = torch.randint(model.config.vocab_size, (batch, tokens), generator=draw).tolist()
    parameters = SamplingParameters(max_tokens=tokens, temperature=0)
    requests = [Request(prompt, parameters) for prompt in prompts]
    times = interleaved({"engine": lambda: engine.generate(requests)}, rounds, waiting_clock("cuda"))
    seconds = median(times["engine"])
    weights = sum(p.nbytes for name, p in model.named_parameters() if "embedding" not in name)
    return {
        "batch": batch,
        "tokens_per_second": batch * tokens / seconds,
        "milliseconds_per_step": 1e3 * seconds / tokens,
        "weights_gb_per_s": weights * tokens / seconds / 1e9,
    }


def _checkpoint(dry: bool, end: float) -> Iterator[Task]:
    for size in (0.5,) if dry else (150.0,):
        yield f"{size:g}M parameters", partial(_checkpoint_of, size, 1 if dry else 3)


def _checkpoint_of(size: float, rounds: int) -> dict[str, Any]:
    (row,) = checkpoint.measure([size], rounds, None, lambda line: None, "cuda")["sizes"]
    return row


SECTIONS: dict[str, Callable[[bool, float], Iterator[Task]]] = {
    "tests": _tests,
    "optim": _optim,
    "train": _train,
    "decode": _decode,
    "checkpoint": _checkpoint,
    "resonance": _resonance,
}
"""Name -> (dry, end) -> its tasks."""


def line(section: str, row: dict[str, Any]) -> str:
    """A row for people."""
    words = f"failed: {row['error']}" if "error" in row else WORDS[section](row)
    return f"  {row['task']:<32} {words}"


def _resonance_words(row: Mapping[str, Any]) -> str:
    ours, theirs = row["resonance"]["step_seconds"], row["attention"]["step_seconds"]
    return f"resonance {1e3 * ours:.1f} ms, attention {1e3 * theirs:.1f} ms: {theirs / ours:.2f} x as fast"


def _decode_words(row: Mapping[str, Any]) -> str:
    return (
        f"{row['tokens_per_second']:,.0f} tokens/s, {row['milliseconds_per_step']:.2f} ms per step,"
        f" weights read at {row['weights_gb_per_s']:,.0f} GB/s"
    )


WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "tests": lambda row: f"{row['passed']} passed, {row['skipped']} skipped",
    "optim": lambda row: optim.line(row["optimizer"], row),
    "train": lambda row: f"{'compiled' if row['compile'] else 'eager'}, {train.line(row)}",
    "resonance": _resonance_words,
    "decode": _decode_words,
    "checkpoint": checkpoint.line,
}


def main() -> None:
    """Run the section of the command line."""
    name, file, mode, end = sys.argv[1:5]
    dry = mode == "dry"
    with pretend_gpu(kernels=name == "optim") if dry else contextlib.nullcontext():
        facts, rows = machine("cuda"), list[dict[str, Any]]()
        write_json(file, {"machine": facts, "rows": rows})
        for label, work in SECTIONS[name](dry, float(end)):
            start = time.perf_counter()
            try:
                row = work()
            except Exception as error:
                if not isinstance(error, UserError):
                    traceback.print_exc()
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                row = {"error": reason if isinstance(error, UserError) else f"{type(error).__name__}: {reason}"}
            rows.append({"task": label, **row, "seconds_taken": round(time.perf_counter() - start, 2)})
            write_json(file, {"machine": facts, "rows": rows})
            print(line(name, rows[-1]), flush=True)


if __name__ == "__main__":
    main()
