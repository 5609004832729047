"""The sections of the benchmark: each is a series of small tasks, the most important ones first.

    optim        an optimizer step against torch's fused AdamW, with its bandwidth
    train        tokens per second and MFU of the trainer, in bfloat16 with compiled blocks
    resonance    a step of oscillators and of attention, by context
    decode       tokens per second of the engine, by batch
    checkpoint   time that a checkpoint blocks training

With `quick` sizes are tiny: all tasks run within a minute on a CPU, and the numbers mean nothing.

`python -m danalab_bench.gpu_sections SECTION FILE DEVICE quick|full` runs one section. A task that fails is a row
with its error, and the next one follows; FILE is written after each.
"""

import sys
import tempfile
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
from danalab_bench import checkpoint, optim, resonance, train
from danalab_bench.timing import interleaved, waiting_clock
from danalab_bench.train import BLOCK, TrainingCase, random_tokens, trainer_alone

Task = tuple[str, Callable[[], dict[str, Any]]]
"""(label, the measurement, which returns values for JSON)."""


CONTENDERS = (
    *("adana:fused", "adana:graph", "dana-star-mk4:fused", "dana-star-mk4:graph", "ademamix:fused", "muon"),
    *("adana:bf16+8", "adana:8bit", "dana-mk4:fused", "auto-dana:fused", "adana:foreach", "d-muon", "adamw:fused"),
)
ROUNDS = 15


def _optim(device: str, quick: bool) -> Iterator[Task]:
    for size in ("0.2",) if quick else ("88", "20", "600"):
        for name in CONTENDERS:
            if device == "cuda" or not name.endswith(":graph"):
                yield f"{size}M {name}", partial(_optim_step, device, size, name, 1 if quick else ROUNDS)


def _optim_step(device: str, size: str, name: str, rounds: int) -> dict[str, Any]:
    (cell,) = optim.measure(device, [size], rounds, [name])["sizes"].values()
    (row,) = cell["results"].values()
    return {"optimizer": name, "parameters": cell["parameters"], "copy_gb_per_s": cell["copy_gb_per_s"], **row}


CASES = (
    TrainingCase("enoki", 12, 50304, 16, 2048),  # 141M parameters
    TrainingCase("enoki", 22, 50304, 16, 2048),  # 522M
)


def _train(device: str, quick: bool) -> Iterator[Task]:
    for case in (TrainingCase("enoki", 2, 64, 2, 16),) if quick else CASES:
        label = f"{case.arch} {case.heads} heads, {case.batch_size} x {case.seq_len}"
        yield label, partial(_train_case, case, device, quick)


def _train_case(case: TrainingCase, device: str, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        data = random_tokens(Path(scratch) / "data", case.vocab_size, case.seq_len)
        rounds, block = (1, 1) if quick else (3, BLOCK)
        return {**asdict(case), **trainer_alone(case, data, Path(scratch), rounds, device, block)}


def _resonance(device: str, quick: bool) -> Iterator[Task]:
    for length in (64, 128) if quick else (4096, 8192, 16384, 32768):
        sizes: dict[str, Any] = (
            {"d_model": 32, "n_layers": 1, "rounds": 1} if quick else {"d_model": 1024, "n_layers": 4, "rounds": 3}
        )
        settings = resonance.MixerComparison(lengths=(length,), longest_attention=length, device=device, **sizes)
        yield f"{length} tokens", partial(_resonance_at, settings)


def _resonance_at(settings: resonance.MixerComparison) -> dict[str, Any]:
    measured = resonance.speed(settings, lambda line: None)
    return {
        name: {"params": measured[name]["params"], **measured[name]["rows"][0]} for name in ("resonance", "attention")
    }


def _decode(device: str, quick: bool) -> Iterator[Task]:
    if quick:
        config = ModelConfig("enoki", 32, 1, 2, 16, 64, 64, 32)
    else:
        size = dimensions("enoki", 12, 50304)
        config = ModelConfig(
            "enoki", size.d_model, size.n_layers, size.n_heads, size.head_dim, size.mlp_dim, size.vocab_size, 2048
        )
    model = build_model(config, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32).eval()
    for batch in (1, 8, 64):
        yield f"batch {batch}", partial(_decode_batch, model, device, batch, 8 if quick else 128, 1 if quick else 3)


def _decode_batch(model: Decoder, device: str, batch: int, tokens: int, rounds: int) -> dict[str, Any]:
    """`tokens` tokens after prompts of as many."""
    engine = Engine(model, max_batch_size=batch, prefix_reuse=False)
    draw = torch.Generator().manual_seed(batch)
    prompts = torch.randint(model.config.vocab_size, (batch, tokens), generator=draw).tolist()
    parameters = SamplingParameters(max_tokens=tokens, temperature=0)
    requests = [Request(prompt, parameters) for prompt in prompts]
    times = interleaved({"engine": lambda: engine.generate(requests)}, rounds, waiting_clock(device))
    seconds = median(times["engine"])
    weights = sum(p.nbytes for name, p in model.named_parameters() if "embedding" not in name)
    return {
        "batch": batch,
        "tokens_per_second": batch * tokens / seconds,
        "milliseconds_per_step": 1e3 * seconds / tokens,
        "weights_gb_per_s": weights * tokens / seconds / 1e9,
    }


def _checkpoint(device: str, quick: bool) -> Iterator[Task]:
    for size in (0.5,) if quick else (150.0,):
        yield f"{size:g}M parameters", partial(_checkpoint_of, device, size, 1 if quick else 3)


def _checkpoint_of(device: str, size: float, rounds: int) -> dict[str, Any]:
    (row,) = checkpoint.measure([size], rounds, None, lambda line: None, device)["sizes"]
    return row


SECTIONS: dict[str, Callable[[str, bool], Iterator[Task]]] = {
    "optim": _optim,
    "train": _train,
    "resonance": _resonance,
    "decode": _decode,
    "checkpoint": _checkpoint,
}
"""Name -> (device, quick) -> its tasks."""


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
    "optim": lambda row: optim.line(row["optimizer"], row),
    "train": train.line,
    "resonance": _resonance_words,
    "decode": _decode_words,
    "checkpoint": checkpoint.line,
}


def main() -> None:
    """Run the section of the command line."""
    name, file, device, quick = sys.argv[1:5]
    rows: list[dict[str, Any]] = []
    for label, work in SECTIONS[name](device, quick == "quick"):
        start = time.perf_counter()
        try:
            row = work()
        except Exception as error:
            if not isinstance(error, UserError):
                traceback.print_exc()
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            row = {"error": reason if isinstance(error, UserError) else f"{type(error).__name__}: {reason}"}
        rows.append({"task": label, **row, "seconds_taken": round(time.perf_counter() - start, 2)})
        write_json(file, {"machine": machine(device), "rows": rows})
        print(line(name, rows[-1]), flush=True)


if __name__ == "__main__":
    main()
