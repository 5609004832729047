"""The parallel modes of every optimizer, measured on gloo ranks in about a minute.

python bench/optim_capabilities.py    writes bench/results/optim_capabilities.json, docs/optimizer-capabilities.md
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402

from danalab.files import write_atomically, write_json  # noqa: E402
from danalab.optim import list_optimizers  # noqa: E402
from distributed.capabilities import RANKS, measure  # noqa: E402
from distributed.capabilities_page import render  # noqa: E402

if __name__ == "__main__":
    torch.set_num_threads(1)
    names = list_optimizers()
    found: dict[str, dict[str, object]] = {name: {} for name in names}
    for mode in RANKS:
        print(f"{mode}: {len(names)} optimizers on {RANKS[mode][0]} and {RANKS[mode][1]} ranks", file=sys.stderr)
        for name, cell in measure(mode, names).items():
            found[name][mode] = cell
    ranks = {mode: list(each) for mode, each in RANKS.items()}
    results = {"torch": torch.__version__, "ranks": ranks, "optimizers": found}
    write_json(ROOT / "bench" / "results" / "optim_capabilities.json", results)
    write_atomically(ROOT / "docs" / "optimizer-capabilities.md", render(results))
