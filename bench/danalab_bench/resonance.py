"""Oscillators against attention in models of equal size: time, memory, decoding, and loss.

Speed is measured with random weights and tokens, and says nothing about quality; a slope is the exponent of time as a
function of length: 1 is linear, 2 quadratic. For the loss both models use the same trainer, optimizer and tokens in the
same order; losses are compared at equal tokens and at equal time, that is, when the faster model has finished and the
learning rate of the slower one has not decayed yet. Each model uses the default initialisation of its architecture.
"""

import ctypes
import gc
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from danalab.models import Decoder, ModelConfig, build_model
from danalab.models.cache import Cache
from danalab.scaling.architectures import ARCHITECTURES
from danalab.train import TrainConfig, train
from danalab.train.config.fields import PathText
from danalab.train.system.device import machine
from danalab_bench.timing import Say, clock_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MIXER_COLORS = {"resonance": "#228B22", "attention": "#d62728"}
VOCAB = 256
"""Of the speed measurement: small, so that mixing takes the time, not the head."""
DECODED = 32
"""Decoded tokens timed at each position."""
LARGEST_HEAD = 64


@dataclass(frozen=True, kw_only=True)
class MixerComparison:
    """MixerComparison of the measurement."""

    d_model: int
    n_layers: int
    lengths: tuple[int, ...]
    """Contexts [tokens]."""
    longest_attention: int
    """Attention is not measured at longer ones."""
    rounds: int
    """Steps of each model at each length; the fastest counts."""
    device: str = "cpu"
    data: PathText | None = None
    """Training data of both; None: speed only."""
    seq_len: int = 512
    """Context of that training [tokens]."""
    steps: int = 200
    batch_size: int = 8
    lr: float = 3e-3
    seeds: tuple[int, ...] = (0,)


QUICK = {"d_model": 32, "n_layers": 1, "lengths": (256, 512, 1024), "longest_attention": 1024, "rounds": 1,
         "seq_len": 64, "steps": 20}  # fmt: skip
"""MixerComparison of `--quick`, a smoke test in seconds; its numbers mean nothing."""


def measure(settings: MixerComparison, say: Say) -> dict[str, Any]:
    """Measure everything; see `danalab bench resonance`."""
    shown = {**vars(settings), "lengths": list(settings.lengths), "seeds": list(settings.seeds)}
    result: dict[str, Any] = {
        "benchmark": "resonance",
        "machine": machine(settings.device),
        "settings": {**shown, "data": settings.data and Path(settings.data).name},  # without the path on this machine
        "speed": {"weights": "random: speed only", **speed(settings, say)},
    }
    if settings.data is not None:
        result["learning"] = learning(settings, say)
    return result


def shapes(d_model: int, n_layers: int, vocab_size: int, seq_len: int) -> dict[str, ModelConfig]:
    """Both models, equal in size within a percent: attention's fourth square matrix is subtracted from its MLP."""
    mlp_dim = ARCHITECTURES.get("resonance").mlp_dim(d_model)
    groups = math.gcd(8, d_model)
    head_dim = math.gcd(LARGEST_HEAD, d_model)
    common: dict[str, Any] = {"d_model": d_model, "n_layers": n_layers, "vocab_size": vocab_size, "seq_len": seq_len}
    attention_mlp = max(1, mlp_dim - d_model // 3)
    return {
        "resonance": ModelConfig(
            "resonance", n_heads=groups, head_dim=d_model // groups, mlp_dim=mlp_dim, **common
        ),
        "attention": ModelConfig(
            "llama", n_heads=d_model // head_dim, head_dim=head_dim, mlp_dim=attention_mlp, tied_head=True, **common
        ),
    }  # fmt: skip


# ---- speed ----


def speed(settings: MixerComparison, say: Say) -> dict[str, Any]:
    """Steps and decoding of both models at each length."""
    device, lengths = settings.device, sorted(settings.lengths)
    configs = shapes(settings.d_model, settings.n_layers, VOCAB, lengths[-1] + DECODED)
    both = {name: build_model(config, device=device) for name, config in configs.items()}
    tokens = {length: torch.randint(VOCAB, (1, length), device=device) for length in lengths}
    measured = {name: [n for n in lengths if name == "resonance" or n <= settings.longest_attention] for name in both}
    clock = clock_of(device)
    times: dict[tuple[str, int], list[float]] = {(name, n): [] for name in both for n in measured[name]}
    for model in both.values():
        train_once(model, tokens[lengths[0]])  # warm
    for _ in range(settings.rounds):
        for name, length in times:
            took = clock(lambda name=name, length=length: train_once(both[name], tokens[length]))
            times[name, length].append(took)
    results: dict[str, Any] = {}
    for name, model in both.items():
        rows = [
            {
                "tokens": length,
                "step_seconds": min(times[name, length]),
                "peak_bytes": peak_bytes(lambda m=model, n=length: train_once(m, tokens[n]), device),
                **decoding(model, tokens[length], clock),
            }
            for length in measured[name]
        ]
        results[name] = {
            "params": model.num_parameters(),
            "rows": rows,
            "slope": slope([(row["tokens"], row["step_seconds"]) for row in rows]),
            "slope_from_4096": slope([(row["tokens"], row["step_seconds"]) for row in rows if row["tokens"] >= 4096]),
            "decoding_last_over_first": rows[-1]["decode_seconds"] / rows[0]["decode_seconds"],
        }
        for line in speed_lines(name, results[name]):
            say(line)
    common = measured["attention"][-1:]
    if common:
        ours, theirs = (next(row for row in results[name]["rows"] if row["tokens"] == common[0]) for name in both)
        results["faster_at_longest"] = {"tokens": common[0], "ratio": theirs["step_seconds"] / ours["step_seconds"]}
        say(f"at {common[0]:,} tokens a step of resonance is {results['faster_at_longest']['ratio']:.1f} x as fast")
    return results


def train_once(model: Decoder, tokens: Tensor) -> None:
    """Forward and backward of the blocks, without the head; on a GPU under autocast, as in training."""
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=tokens.is_cuda):
        loss = model.hidden(tokens).float().square().mean()
    loss.backward()


@torch.no_grad()
def decoding(model: Decoder, tokens: Tensor, clock: Callable[[Callable[[], Any]], float]) -> dict[str, float]:
    """Median seconds of one more token after `tokens`, and the bytes of the decoding state."""
    cache = model.new_cache(1, tokens.shape[1] + DECODED)
    model.hidden(tokens, cache)
    one = tokens[:, :1]
    times = [clock(lambda: model.hidden(one, cache)) for _ in range(DECODED)]
    return {"decode_seconds": median(times), "decode_bytes": kept_bytes(cache)}


def kept_bytes(cache: Cache) -> int:
    """Bytes of all tensors in a decoding state."""
    return sum(value.nbytes for state in cache.states for value in vars(state).values() if isinstance(value, Tensor))


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Slope of the least-squares line through the logarithms; None for one point."""
    if len(points) < 2:
        return None
    x, y = ([math.log(point[axis]) for point in points] for axis in (0, 1))
    centre, level = mean(x), mean(y)
    rise = sum((a - centre) * (b - level) for a, b in zip(x, y, strict=True))
    return rise / sum((a - centre) ** 2 for a in x)


def peak_bytes(work: Callable[[], Any], device: str) -> int | None:
    """Peak memory of `work` beyond what was allocated before; None if the system does not report it.

    On a CPU it is the peak of resident memory, which Linux records.
    """
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated() - before
    if sys.platform != "linux":
        return None
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # otherwise freed memory would be reused unnoticed
    if trim is not None:
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        work()
        return max(0, _status("VmHWM") - before)
    except OSError:
        return None


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def speed_lines(name: str, result: Mapping[str, Any]) -> list[str]:
    """The table as text."""
    lines = [f"{name}, {result['params']:,} parameters (random weights: speed only)"]
    for row in result["rows"]:
        peak = "" if row["peak_bytes"] is None else f", peak {row['peak_bytes'] / 2**20:8.1f} MiB"
        lines.append(
            f"  {row['tokens']:>7,} tokens: step {row['step_seconds']:8.4f} s{peak}; decoding "
            f"{1e3 * row['decode_seconds']:.2f} ms/token, {row['decode_bytes'] / 2**20:.3f} MiB"
        )
    for key, what in (("slope", "of all lengths"), ("slope_from_4096", "from 4,096 tokens on")):
        if result[key] is not None:
            lines.append(f"  time grows with the length to the power {result[key]:.2f} ({what})")
    return lines


# ---- learning ----


def learning(settings: MixerComparison, say: Say) -> dict[str, Any]:
    """Both models trained in the same way on `settings.data`."""
    runs: dict[str, list[dict[str, Any]]] = {"resonance": [], "attention": []}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in settings.seeds:
            for name, results in runs.items():
                results.append(_trained(name, seed, settings, Path(scratch)))
    tokens = min(run["curve"][-1]["tokens"] for results in runs.values() for run in results)
    seconds = min(run["curve"][-1]["time"] for results in runs.values() for run in results)
    result: dict[str, Any] = {"tokens": tokens, "seconds": seconds, "models": {}}
    for name, results in runs.items():
        result["models"][name] = {
            "runs": results,
            "loss_at_equal_tokens": mean(loss_at(run["curve"], "tokens", tokens) for run in results),
            "loss_at_equal_time": mean(loss_at(run["curve"], "time", seconds) for run in results),
            "tokens_per_second": mean(run["tokens_per_second"] for run in results),
        }
        one = result["models"][name]
        say(
            f"{name}: validation loss {one['loss_at_equal_tokens']:.4f} after {tokens:,} tokens, "
            f"{one['loss_at_equal_time']:.4f} after {seconds:.0f} s; {one['tokens_per_second']:,.0f} tokens/s"
        )
    return result


def _trained(name: str, seed: int, settings: MixerComparison, scratch: Path) -> dict[str, Any]:
    # The vocabulary of the data changes neither the shape of a block nor which model is larger.
    shape = shapes(settings.d_model, settings.n_layers, VOCAB, settings.seq_len)[name]
    every = max(1, settings.steps // 10)
    config = TrainConfig(
        arch=shape.arch,
        d_model=shape.d_model,
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        head_dim=shape.head_dim,
        mlp_dim=shape.mlp_dim,
        tied_head=True,
        opt="adamw",
        lr=settings.lr,
        weight_decay=0.1,
        scheduler="cos",
        data=str(settings.data),
        seq_len=settings.seq_len,
        batch_size=settings.batch_size,
        iterations=settings.steps,
        warmup_steps=settings.steps // 10,
        eval_interval=every,
        eval_batches=1,
        log_interval=every,
        ckpt_interval=0,
        seed=seed,
        data_seed=1337 + seed,
        device=settings.device,
        run_dir=scratch / f"{name}-{seed}",
    )
    folder = train(replace(config, name=name))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    curve = [
        {"tokens": row["tokens"], "time": row["time"], "loss": row["val/loss"]} for row in rows if "val/loss" in row
    ]
    return {
        "seed": seed,
        "params": summary["params"],
        "curve": curve,
        "tokens_per_second": curve[-1]["tokens"] / max(curve[-1]["time"], 1e-9),
    }


def loss_at(curve: Sequence[Mapping[str, float]], axis: str, where: float) -> float:
    """The loss of a curve at a value of "tokens" or "time", interpolated linearly."""
    before = [point for point in curve if point[axis] <= where]
    after = [point for point in curve if point[axis] >= where]
    low, high = (before or after)[-1 if before else 0], (after or before)[0 if after else -1]
    if high[axis] == low[axis]:
        return high["loss"]
    share = (where - low[axis]) / (high[axis] - low[axis])
    return low["loss"] + share * (high["loss"] - low["loss"])


MARKERS = {"resonance": "o", "attention": "s"}


def resonance_figure(result: Mapping[str, Any]) -> "Figure":
    """Three panels of speed and, where the models were trained, two of what they learned."""
    from danalab.report.figures.drawing import styled  # matplotlib is not needed to measure

    return styled(_draw)(result)


def _draw(result: Mapping[str, Any]) -> "Figure":
    from matplotlib.figure import Figure

    from danalab.report.figures.drawing import LOSS, plain

    learned: Mapping[str, Any] | None = result.get("learning")
    figure = Figure(figsize=(12, 7.2 if learned else 3.8))
    axes: Any = figure.subplot_mosaic("aabbcc;dddeee" if learned else "aabbcc")
    device, shape = result["machine"].get("gpu") or result["machine"]["cpu"], result["settings"]
    figure.suptitle(
        f"Resonance and attention of one size: {shape['n_layers']} x {shape['d_model']}, one row, {device} "
        f"({'above: random weights, speed only' if learned else 'random weights: speed only'})",
        fontsize=11,
    )
    for name in MIXER_COLORS:
        rows, exponent = result["speed"][name]["rows"], result["speed"][name]["slope"]
        tokens = [row["tokens"] for row in rows]
        label = name if exponent is None else f"{name}: exponent {exponent:.2f}"
        _line(axes["a"], tokens, [row["step_seconds"] for row in rows], name, label)
        if all(row["peak_bytes"] is not None for row in rows):
            _line(axes["b"], tokens, [row["peak_bytes"] / 2**20 for row in rows], name, name)
        _line(axes["c"], tokens, [1e3 * row["decode_seconds"] for row in rows], name, name)
        for number, run in enumerate(learned["models"][name]["runs"] if learned else []):
            for panel, axis in (("d", "tokens"), ("e", "time")):
                points = [point for point in run["curve"] if point[axis] > 0]
                x, y = [point[axis] for point in points], [point["loss"] for point in points]
                _line(axes[panel], x, y, name, f"_{name}" if number else name, size=3)
    lengths = [row["tokens"] for row in result["speed"]["resonance"]["rows"]]
    for panel, title, y in (
        ("a", "forward and backward", "seconds per step"),
        ("b", "memory of a step", "highest, beyond the weights [MiB]"),
        ("c", "decoding", "milliseconds/token"),
    ):
        axes[panel].set(title=title, ylabel=y, xlabel="position [tokens]" if panel == "c" else "context [tokens]")
        axes[panel].set_xscale("log", base=2)
        axes[panel].set_xticks(lengths, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths])
        if panel != "c" and axes[panel].lines:
            axes[panel].set_yscale("log")
            plain(axes[panel].yaxis)
    axes["c"].set_ylim(0, 1.3 * axes["c"].get_ylim()[1])
    if learned:
        axes["d"].set(title="trained alike: by tokens", xlabel="training tokens", ylabel=LOSS)
        axes["e"].set(title="trained alike: by time", xlabel="training time [s]", ylabel=LOSS)
    for each in axes.values():
        if each.get_legend_handles_labels()[0]:
            each.legend()
    return figure


def _line(axes: "Axes", x: Sequence[float], y: Sequence[float], name: str, label: str, size: float = 5) -> None:
    axes.plot(x, y, color=MIXER_COLORS[name], marker=MARKERS[name], markersize=size, linewidth=1.4, label=label)
