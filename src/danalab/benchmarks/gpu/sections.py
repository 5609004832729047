"""The sections of the benchmark: each is a series of small tasks, the most important ones first.

    optim        an optimizer step against torch's fused AdamW, with its bandwidth
    train        tokens per second and MFU of the trainer, in bfloat16 with compiled blocks
    resonance    a step of oscillators and of attention, by context
    decode       tokens per second of the engine, by batch
    checkpoint   time that a checkpoint holds training up

With `quick` sizes are tiny: all tasks run within a minute on a CPU, and the numbers mean nothing.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from danalab.benchmarks import checkpoint, optim, resonance
from danalab.benchmarks.timing import interleaved, waiting_clock
from danalab.benchmarks.train import BLOCK, Case, random_tokens, trainer_alone
from danalab.inference import Engine, Request, SamplingParameters
from danalab.models import Decoder, ModelConfig, build_model
from danalab.scaling import dimensions

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
    Case("enoki", 12, 50304, 16, 2048),  # 141M parameters
    Case("enoki", 22, 50304, 16, 2048),  # 522M
)


def _train(device: str, quick: bool) -> Iterator[Task]:
    for case in (Case("enoki", 2, 64, 2, 16),) if quick else CASES:
        label = f"{case.arch} {case.heads} heads, {case.batch_size} x {case.seq_len}"
        yield label, partial(_train_case, case, device, quick)


def _train_case(case: Case, device: str, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        data = random_tokens(Path(scratch) / "data", case.vocab_size, case.seq_len)
        rounds, block = (1, 1) if quick else (3, BLOCK)
        return {**asdict(case), **trainer_alone(case, data, Path(scratch), rounds, device, block)}


def _resonance(device: str, quick: bool) -> Iterator[Task]:
    for length in (64, 128) if quick else (4096, 8192, 16384, 32768):
        sizes: dict[str, Any] = (
            {"d_model": 32, "n_layers": 1, "rounds": 1} if quick else {"d_model": 1024, "n_layers": 4, "rounds": 3}
        )
        settings = resonance.Settings(lengths=(length,), longest_attention=length, device=device, **sizes)
        yield f"{length} tokens", partial(_resonance_at, settings)


def _resonance_at(settings: resonance.Settings) -> dict[str, Any]:
    found = resonance.speed(settings, lambda line: None)
    return {name: {"params": found[name]["params"], **found[name]["rows"][0]} for name in ("resonance", "attention")}


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
