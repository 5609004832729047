"""Losses of a ladder's models on tokens that can be copied from the context, and on the rest: table of notes/ladder.md.

python bench/induction.py ladders/ladder_cpu_large ladders/adamw_valleys    # adds to bench/results/induction_cpu.jsonl
python bench/induction.py                                                   # from the stored rows

A token counts as one to copy where the two tokens before it stood together earlier in the window, and it followed them
there the last time. Heads that look it up are induction heads (Olsson et al. 2022, arXiv 2209.11895).
"""

import argparse
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.data import open_data
from danalab.ladder.rows import read_ladder
from danalab.models.decoder import Decoder
from danalab.report.formats import Table, as_markdown
from danalab.train import open_run
from danalab_bench.pages import fill_parts
from ladder_today import NAMES

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "bench" / "results" / "induction_cpu.jsonl", ROOT / "notes" / "ladder.md"
DATA, SEQ_LEN, N_WINDOWS = "datasets/stdlib-bpe-512", 128, 640
COPIES = 1.5
"""A model with less loss than this on tokens to copy looks them up [nats/token]."""
Rows = list[dict[str, Any]]


def to_copy(inputs: Tensor, targets: Tensor) -> Tensor:
    """Which of the targets int64 [windows, tokens] can be copied, bool of the same shape."""
    mask = torch.zeros(targets.shape, dtype=torch.bool)
    for i, (tokens, nexts) in enumerate(zip(inputs.tolist(), targets.tolist(), strict=True)):
        follows: dict[tuple[int, int], int] = {}
        for t, (pair, target) in enumerate(zip(pairwise(tokens), nexts[1:], strict=True), start=1):
            mask[i, t] = follows.get(pair) == target
            follows[pair] = target
    return mask


def losses(model: Decoder, inputs: Tensor, targets: Tensor, mask: Tensor) -> dict[str, float]:
    """Mean loss of all tokens, of those to copy, and of the rest [nats/token]."""
    parts = zip(inputs.split(64), targets.split(64), strict=True)
    each = torch.cat([model.token_losses(*part) for part in parts])
    return {"loss": float(each.mean()), "to_copy": float(each[mask].mean()), "rest": float(each[~mask].mean())}


def measure(folders: Iterable[Path]) -> Rows:
    """A row for each finished run of the ladders."""
    inputs, targets = open_data(DATA, split="val").sequential(SEQ_LEN)[:N_WINDOWS]
    mask = to_copy(inputs, targets)
    rows = []
    for row in (row for folder in folders for row in read_ladder(folder) if row["status"] == "finished"):
        found = losses(open_run(row["run"]).load_model().model.eval(), inputs, targets, mask)
        about = {name: row[name] for name in ("name", "opt", "params", "lr", "seed")}
        rows.append({**about, **{name: round(loss, 4) for name, loss in found.items()}})
    return rows


def table(rows: Rows) -> Table:
    """A line for each optimizer and size: how many of its runs copy, and their losses beside those of the others."""
    lines = []
    for params, opt in sorted({(row["params"], row["opt"]) for row in rows}):
        own = [row for row in rows if (row["params"], row["opt"]) == (params, opt)]
        copying = [row for row in own if row["to_copy"] < COPIES]
        head = [f"{params / 1e3:.0f} k", NAMES[opt], f"{len(copying)} of {len(own)}"]
        lines.append([*head, _range(own, "to_copy"), _range(own, "rest")])
    return ["parameters", "optimizer", "runs that copy", "loss on tokens to copy", "loss on the rest"], lines


def _range(rows: Rows, name: str) -> str:
    return " to ".join(dict.fromkeys(f"{end(row[name] for row in rows):.2f}" for end in (min, max)))


def fill(page: str, rows: Rows) -> str:
    """The page with the table of the rows."""
    return fill_parts(page, "copying", {"table": as_markdown(table(rows))})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladders", type=Path, nargs="*")
    stored = {row["name"]: row for row in map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())}
    if folders := parser.parse_args().ladders:
        stored.update({row["name"]: row for row in measure(folders)})
        RESULTS.write_text("".join(json.dumps(row) + "\n" for row in stored.values()), encoding="utf-8")
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), list(stored.values())), encoding="utf-8")
