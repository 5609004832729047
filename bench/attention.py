"""The attention kernel for training on CPUs against torch's attention: forward and backward of the mixing, float32.

python bench/attention.py [--threads 1] [--rounds 15] [--out FILE]      # DANALAB_TARGET=x86-64-v2: for lesser CPUs

Rows are one document each, or documents of 100 tokens, which torch is given as a mask, by blocks of queries.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_PROC_BIND", "true")  # read when torch is imported
os.environ.setdefault("OMP_PLACES", "cores")

import torch

from danalab.files import write_json
from danalab.models.layers.attention import attend, attend_within_documents
from danalab.models.layers.attention_kernel import attend_rows
from danalab.native_library import target
from danalab.train.system.device import machine
from danalab_bench.timing import Work, clock_of, interleaved, pin_threads, ratios, spread

SHAPES = ((8, 4, 256, 32), (4, 4, 512, 32), (2, 8, 1024, 64), (2, 4, 2048, 32))
"""Rows of a batch, heads, tokens, features of a head."""
DOCUMENT = 100
"""Tokens of a document."""


def measure(shapes: tuple[tuple[int, ...], ...], rounds: int) -> dict[str, Any]:
    """Seconds of both, and how many times as long torch takes, for each shape."""
    rows = []
    for shape in shapes:
        for documents in (False, True):
            times = interleaved(contenders(shape, documents), rounds, clock_of("cpu"))
            rows.append(
                dict(zip(("batch", "heads", "tokens", "features"), shape, strict=True))
                | {"documents_of": DOCUMENT if documents else None}
                | {"seconds": {name: spread(each) for name, each in times.items()}}
                | {"torch_over_danalab": ratios(times["torch"], times["danalab"])}
            )
            print(*shape, "documents" if documents else "whole", f"{rows[-1]['torch_over_danalab']['median']:.2f}")
    return {
        "benchmark": "attention", "machine": machine("cpu"), "target": target(),
        "torch": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads(), "rounds": rounds,
        "what": "forward and backward of the mixing, float32", "rows": rows,
    }  # fmt: skip


def contenders(shape: tuple[int, ...], documents: bool) -> dict[str, Work]:
    """Both on the same numbers."""
    batch, heads, length, features = shape
    q, k, v = (torch.randn(batch, length, heads, features).transpose(1, 2).requires_grad_() for _ in range(3))
    weight = torch.randn(batch, length, heads, features).transpose(1, 2)
    starts = (torch.arange(length) // DOCUMENT * DOCUMENT).expand(batch, length).contiguous() if documents else None

    def by_torch() -> torch.Tensor:
        if starts is None:
            return attend(q, k, v, grouped=False)
        return attend_within_documents(q, k, v, starts, grouped=False)

    torch.testing.assert_close(attend_rows(q, k, v, starts), by_torch(), rtol=1e-3, atol=1e-4)
    return {
        "danalab": lambda: torch.autograd.grad(attend_rows(q, k, v, starts), (q, k, v), weight),
        "torch": lambda: torch.autograd.grad(by_torch(), (q, k, v), weight),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "attention_cpu.json")
    chosen = parser.parse_args()
    pin_threads(chosen.threads)
    write_json(chosen.out, measure(SHAPES, chosen.rounds))
