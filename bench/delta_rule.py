"""The gated delta rule in chunks, against the fallback of transformers, and against attention.

Forward and backward of the mixing only, without the surrounding maps; attention has as many heads of the same width.
The two rules get the same inputs, and their outputs and gradients are compared before timing.

python bench/delta_rule.py [--lengths 1024 2048 4096 8192] [--heads 8] [--width 64] [--rounds 5] [--device cuda]
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_PROC_BIND", "true")  # read when torch is imported
os.environ.setdefault("OMP_PLACES", "cores")

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.errors import MissingExtra, UserError
from danalab.files import write_json
from danalab.train.system.device import machine
from danalab.models.delta_rule import gated_delta_rule
from danalab_bench.timing import Work, clock_of, interleaved, pin_threads, ratios, spread

ALIKE = 1e-4
"""Largest difference between the two rules, relative to the largest entry."""


def measure(
    lengths: Sequence[int], heads: int, width: int, rounds: int, device: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure each length; returns values for JSON.

    Args:
        lengths: [tokens]. heads: number of key heads and of value heads. width: features of a head. rounds: counted.
    """
    for name, number in (("--lengths", min(lengths)), ("--heads", heads), ("--width", width), ("--rounds", rounds)):
        if number < 1:
            raise UserError(f"{name} {number}: must be at least 1")
    theirs = _transformers_rule()
    rows = []
    for length in lengths:
        work = _contenders(length, heads, width, device, theirs)
        times = interleaved(work, rounds, clock_of(device))
        mine = times["danalab"]
        row = {
            "tokens": length,
            "seconds": {name: spread(each) for name, each in times.items()},
            "times_faster_than": {name: ratios(each, mine) for name, each in times.items() if name != "danalab"},
        }
        rows.append(row)
        faster = ", ".join(f"{of['median']:.2f} x {name}" for name, of in row["times_faster_than"].items())
        say(f"{length:6} tokens: {1e3 * row['seconds']['danalab']['median']:7.1f} ms; as fast as {faster}")
    return {
        "benchmark": "delta_rule", "machine": machine(device), "threads": torch.get_num_threads(), "heads": heads,
        "width": width, "rounds": rounds, "what": "forward and backward of the mixing, float32, batch 1", "rows": rows,
    }  # fmt: skip


def _transformers_rule() -> Callable[..., tuple[Tensor, Any]]:
    try:
        module = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    except ImportError:
        raise MissingExtra("transformers", "the delta rule of transformers") from None
    return module.torch_chunk_gated_delta_rule


def _contenders(
    length: int, heads: int, width: int, device: str, theirs: Callable[..., tuple[Tensor, Any]]
) -> dict[str, Work]:
    draw = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    shape = (1, length, heads, width)
    q, k, v = F.normalize(normal(*shape), dim=-1), F.normalize(normal(*shape), dim=-1), normal(*shape)
    g, b = -0.1 * F.softplus(normal(1, length, heads)), torch.sigmoid(normal(1, length, heads))
    leaves = [x.to(device).requires_grad_() for x in (q, k, v, g, b)]
    q, k, v, g, b = leaves
    attended = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    of_output = normal(*shape).to(device)

    def our_output() -> Tensor:
        return gated_delta_rule(q * width**-0.5, k, v, g, b)[0]

    def their_output() -> Tensor:
        return theirs(q, k, v, g=g, beta=b)[0]

    def attention() -> Tensor:
        return F.scaled_dot_product_attention(attended[0], attended[1], attended[2], is_causal=True)

    def trained(output: Callable[[], Tensor], inputs: list[Tensor], weight: Tensor) -> Work:
        return lambda: torch.autograd.grad(output(), inputs, weight)

    work = {
        "danalab": trained(our_output, leaves, of_output),
        "transformers": trained(their_output, leaves, of_output),
        "attention": trained(attention, attended, of_output.transpose(1, 2)),
    }
    with torch.no_grad():
        _require_alike(our_output(), their_output(), length)
    for mine, other in zip(work["danalab"](), work["transformers"](), strict=True):
        _require_alike(mine, other, length)
    return work


def _require_alike(ours: Tensor, theirs: Tensor, length: int) -> None:
    if not (ours - theirs).abs().max() <= ALIKE * theirs.abs().max():
        raise UserError(f"the two rules differ by more than {ALIKE:g} at {length} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="[tokens]")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="features of a head")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds; 3 more warm up")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, help="JSON file; default bench/results/delta_rule_DEVICE.json")
    chosen = parser.parse_args()
    pin_threads(chosen.threads)
    result = measure(chosen.lengths, chosen.heads, chosen.width, chosen.rounds, chosen.device, print)
    out = chosen.out or Path(__file__).parent / "results" / f"delta_rule_{chosen.device}.json"
    write_json(out, result)
    print(out)
