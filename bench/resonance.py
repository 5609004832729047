"""How does time grow with the length of a sequence? Resonance against attention: a slope, in one run.

    python bench/resonance.py [--lengths 4096 8192 16384 32768] [--rounds 3] [--device cuda] [--out FILE.json]

Each model is a small one (by default one layer of width 64), so that mixing, not the other products, takes the time.
Every round trains both on each length once, forward and backward without the head; a slope is that of the least-squares
line through log time over log length of the fastest rounds: 1 is linear, 2 quadratic. Decoding: seconds for a token
after a text of each length, and the bytes that a text takes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from danalab.benchmarks.timing import machine
from danalab.models import Decoder, ModelConfig, build_model

VOCAB = 256
DECODED = 32


def models(width: int, layers: int, seq_len: int, device: str) -> dict[str, Decoder]:
    """Both, of one shape."""
    shape = {"d_model": width, "n_layers": layers, "mlp_dim": 2 * width, "vocab_size": VOCAB, "seq_len": seq_len}
    return {
        "resonance": build_model(ModelConfig("resonance", n_heads=8, head_dim=width // 8, **shape), device=device),
        "attention": build_model(ModelConfig("llama", n_heads=1, head_dim=width, **shape), device=device),
    }


def seconds(run: Callable[[], Any], device: str) -> float:
    """Of one call, everything on the device included."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def train_once(model: Decoder, tokens: Tensor) -> None:
    """Forward and backward of the blocks."""
    model.zero_grad()
    model.hidden(tokens).square().mean().backward()


@torch.no_grad()
def decoding(model: Decoder, tokens: Tensor, device: str) -> dict[str, float]:
    """Seconds for one more token after `tokens`, and the bytes that decoding keeps."""
    cache = model.new_cache(1, tokens.shape[1] + 2 * DECODED)
    model.hidden(tokens, cache)
    one = tokens[:, :1]
    times = [seconds(lambda: model.hidden(one, cache), device) for _ in range(DECODED)]
    kept = [value for state in cache.states for value in vars(state).values() if isinstance(value, Tensor)]
    return {"seconds": float(np.median(times)), "bytes": sum(value.nbytes for value in kept)}


def slope(lengths: Sequence[int], times: Sequence[float]) -> float:
    """Exponent of time over length."""
    return float(np.polyfit(np.log(lengths), np.log(times), 1)[0])


def measure(
    lengths: Sequence[int], longest_attention: int, rounds: int, width: int, layers: int, device: str
) -> dict[str, Any]:
    """The result, ready for JSON; a line is printed for each model and length."""
    both = models(width, layers, max(lengths) + 2 * DECODED, device)
    tokens = {length: torch.randint(VOCAB, (1, length), device=device) for length in lengths}
    times: dict[str, dict[int, list[float]]] = {
        name: {length: [] for length in lengths if name == "resonance" or length <= longest_attention} for name in both
    }
    for model in both.values():
        train_once(model, tokens[min(lengths)])  # warm
    for _ in range(rounds):
        for length in lengths:
            for name, model in both.items():
                if length in times[name]:
                    times[name][length].append(seconds(lambda m=model, n=length: train_once(m, tokens[n]), device))
    found: dict[str, Any] = {}
    for name, model in both.items():
        best = {length: min(took) for length, took in times[name].items()}
        decoded = {length: decoding(model, tokens[length], device) for length in best}
        exponent = slope(list(best), list(best.values()))
        found[name] = {"train_seconds": best, "slope": exponent, "decoding": decoded}
        for length, took in best.items():
            kept = decoded[length]
            print(f"{name:10} {length:6} tokens: {took:7.3f} s a step; {1e3 * kept['seconds']:.2f} ms a decoded token, "
                  f"{kept['bytes'] / 1e6:.3f} MB")  # fmt: skip
        print(f"{name:10} slope {exponent:.2f}")
    return {"benchmark": "resonance", "machine": machine(device), "width": width, "layers": layers, "rounds": rounds,
            "threads": torch.get_num_threads(), "models": found}  # fmt: skip


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--longest-attention", type=int, default=32768, help="a step of it takes a while")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    result = measure(
        chosen.lengths, chosen.longest_attention, chosen.rounds, chosen.width, chosen.layers, chosen.device
    )
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
