"""Time of orthogonalisation: batched against matrix by matrix, and a whole step against torch.optim.Muon.

The matrices are those of Enoki, of width 768 with 12 heads. Every round runs each contender once on the same gradients.
The loop is the algorithm as usually written, in float32 as ours:
`A = X @ X.T; B = b * A + c * A @ A; X = a * X + B @ X`.
torch.optim.Muon orthogonalises in bfloat16, on any device.

Beside that, the step's share of a training step: Enoki of four layers, forward, backward and step on 8 x 128 tokens.

Without instructions for bfloat16 a layer of width 768 did not end in six minutes, two of --width 256 in two.

python bench/muon.py [--threads 2] [--rounds 5] [--layers 9] [--width 768] [--output FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from danalab.files import write_json
from danalab.models import ModelConfig, build_model
from danalab.optim import Muon
from danalab.optim.optimizers.matrix.newton_schulz import Coefficients, Form, coefficients, orthogonalize_each
from danalab.optim.products import library_newton_schulz
from danalab.train.system.device import machine
from danalab_bench.timing import interleaved, ratios, wall_clock

WIDTHS = (128, 256, 512)
"""Of the models whose training steps are timed."""

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW, fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-9, fused=True),
    "Muon": lambda model: Muon(model, lr=1e-9),
    "Muon, float32": lambda model: Muon(model, lr=1e-9, ns_dtype="float32"),
    "Muon, Polar Express of 4 steps": lambda model: Muon(model, lr=1e-9, ns_method="polar-express", ns_steps=4),
}


def loop(xs: list[Tensor], chain: tuple[Coefficients, ...]) -> None:
    """Matrix by matrix, as Muon is usually written."""
    for x in xs:
        x = x.mT if x.shape[0] > x.shape[1] else x
        x = x / (x.norm() + 1e-7)
        for a, b, c in chain:
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x


def batched(xs: list[Tensor], chain: tuple[Coefficients, ...]) -> None:
    """All matrices of a shape together."""
    sizes = [(x.shape[0], x.shape[1]) for x in xs]
    for _ in orthogonalize_each(sizes, xs.__getitem__, Form(chain), [torch.float32] * len(xs), xs[0].device):
        pass


def shapes(width: int) -> list[tuple[int, int]]:
    """Of the matrices of a block: q, k, v, out, up, down."""
    return [(width, width)] * 4 + [(4 * width, width), (width, 4 * width)]


def contenders(layers: int, width: int) -> dict[str, Callable[[], Any]]:
    """Name -> the timed function."""
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(shape, generator=generator) for _ in range(layers) for shape in shapes(width)]
    params = [torch.zeros_like(x).requires_grad_() for x in xs]
    for p, x in zip(params, xs, strict=True):
        p.grad = x
    polar, newton = coefficients("polar-express", 5), coefficients("newton-schulz", 5)
    groups = [{"params": params, "use_muon": True}]
    return {
        "polar-express loop": lambda: loop(xs, polar),
        "polar-express batched": lambda: batched(xs, polar),
        "newton-schulz batched": lambda: batched(xs, newton),
        "Muon.step": Muon(groups, lr=1e-6).step,
        "Muon(float32).step": Muon(groups, lr=1e-6, ns_dtype="float32").step,
        "Muon(bfloat16).step": Muon(groups, lr=1e-6, ns_dtype="bfloat16").step,
        "torch.optim.Muon.step": torch.optim.Muon(params, lr=1e-6).step,
    }


def shares(width: int, rounds: int) -> dict[str, float]:
    """Optimizer -> its step's share of the time of a training step, medians over rounds."""
    model = build_model(ModelConfig("enoki", width, 4, width // 32, 32, 4 * width, vocab_size=512, seq_len=128), seed=0)
    tokens = torch.randint(0, 512, (8, 129), generator=torch.Generator().manual_seed(0))

    def loss() -> None:
        logits = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()

    loss()
    work: dict[str, Callable[[], Any]] = {"gradients": loss}
    for name, made in OPTIMIZERS.items():
        work[name] = made(model).step
    times = {name: median(each) for name, each in interleaved(work, rounds, wall_clock).items()}
    return {"gradients_s": times["gradients"]} | {
        name: times[name] / (times[name] + times["gradients"]) for name in OPTIMIZERS
    }


def clocks(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    start = time.process_time()
    return wall_clock(work), time.process_time() - start


def measure(layers: int, width: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Time each contender.

    Args:
        layers: blocks of the model; the real one has 9.
        width: of the model; of the real one 768.
        rounds: interleaved rounds, at least 5 for a result.
        say: called with each line of text.
    """
    work = contenders(layers, width)
    times_of = interleaved(work, rounds, clocks)
    times = {name: [wall for wall, _ in found] for name, found in times_of.items()}
    cpu = {name: median(busy for _, busy in found) for name, found in times_of.items()}
    square = torch.randn(2048, 2048)
    gemm = 2 * 2048**3 / wall_clock(lambda: torch.mm(square, square)) / 1e9
    plain = layers * sum(library_newton_schulz(*shape, 5) for shape in shapes(width))
    reference = median(times["polar-express loop"])
    results: dict[str, Any] = {
        "question": "time to orthogonalise the matrices of Enoki, interleaved contenders, medians",
        "machine": machine("cpu"),
        "layers": layers,
        "width": width,
        "rounds": rounds,
        "matrices": layers * len(shapes(width)),
        "gflop_of_the_loop": plain / 1e9,
        "gemm_2048_gflop_per_s": gemm,
        "bar": "polar-express batched at least 1.5 times as fast as the loop",
    }
    say(f"{results['matrices']} matrices, {torch.get_num_threads()} threads, gemm {gemm:.0f} GFLOP/s")
    say(f"{'contender':<26} {'s':>7} {'cpu s':>7} {'GFLOP/s':>8} {'speed-up':>8}")
    for name in work:
        typical = median(times[name])
        results[name] = {
            "median_s": typical,
            "best_s": min(times[name]),
            "median_cpu_s": cpu[name],
            "loop_gflop_per_s": plain / typical / 1e9,
            "speed_up_over_loop": reference / typical,
            "median_speed_up": ratios(times["polar-express loop"], times[name])["median"],
            "cpu_speed_up": cpu["polar-express loop"] / cpu[name],
        }
        row = results[name]
        say(
            f"{name:<26} {typical:7.2f} {row['median_cpu_s']:7.2f} {row['loop_gflop_per_s']:8.0f}"
            f" {row['median_speed_up']:8.2f}"
        )
    results["share_of_a_training_step"] = {f"d_model {d}": shares(d, max(rounds, 7)) for d in WIDTHS}
    for d, found in results["share_of_a_training_step"].items():
        say(f"share of a step, {d}: " + ", ".join(f"{name} {found[name]:.0%}" for name in OPTIMIZERS))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds, at least 5 for a result")
    parser.add_argument("--layers", type=int, default=9, help="blocks of the model (9 in the real one)")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "muon_cpu.json")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    write_json(chosen.output, measure(chosen.layers, chosen.width, chosen.rounds, print))
    print(f"written to {chosen.output}")
