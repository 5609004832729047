"""Losses and probabilities of tokens by how often they come: a table of docs/theory.md.

danalab ladder bench/rare_tokens.yaml
python bench/rare_tokens.py ladders/rare_tokens    # stores bench/results/rare_tokens_cpu.jsonl
python bench/rare_tokens.py                        # from the stored rows

A token's frequency is its share of the training text. Of the tokens of a bin: the mean loss where one of them comes,
and the probability that the model gives to all of them, divided by how often one of them comes in the validation text.
"""

import argparse
import json
import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from danalab.data import open_data
from danalab.ladder.fit.statistics import Interval, student_interval
from danalab.ladder.fit.tuning import tune
from danalab.ladder.rows import read_ladder
from danalab.models.decoder import Decoder
from danalab.report.formats import Table, as_markdown
from danalab.sweep.rows import is_usable
from danalab.train import open_run
from danalab_bench.pages import fill_parts

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "bench" / "results" / "rare_tokens_cpu.jsonl", ROOT / "docs" / "theory.md"
DATA, SEQ_LEN = "datasets/stdlib-bpe-2048", 128
EDGES = (1 / 500, 1 / 2_000, 1 / 5_000, 1 / 10_000)
"""Frequencies between the bins, the most frequent tokens first."""
BINS = ("above 1/500", "1/2,000", "1/5,000", "1/10,000", "below")
NAMES = {
    "adamw-95": "AdamW, betas .9, .95", "adamw-99": "AdamW, betas .9, .99", "adana": "ADana",
    "dana-star-mk4": "Dana-Star-MK4",
}  # fmt: skip
Rows = list[dict[str, Any]]


def bins_of(frequencies: Tensor) -> Tensor:
    """Bin of each token, int64 [vocab], of its frequency [vocab]."""
    return (frequencies[:, None] < torch.tensor(EDGES, dtype=frequencies.dtype)).sum(1)


def measures(model: Decoder, inputs: Tensor, targets: Tensor, bins: Tensor) -> dict[str, list[float]]:
    """Mean loss of the targets of each bin [nats/token], and its probability over its share of the targets."""
    loss, mass, count = (torch.zeros(len(BINS), dtype=torch.float64) for _ in range(3))
    member = torch.nn.functional.one_hot(bins, len(BINS)).float()
    for x, y in zip(inputs.split(32), targets.split(32), strict=True):
        with torch.no_grad():
            logp = model(x).flatten(0, 1).log_softmax(1)
        of = bins[y.flatten()]
        loss.index_add_(0, of, -logp.gather(1, y.flatten()[:, None])[:, 0].double())
        mass += (logp.exp() @ member).sum(0).double()
        count += of.bincount(minlength=len(BINS))
    return {"loss": (loss / count).tolist(), "ratio": (mass / count).tolist()}


def measure(ladder: Path) -> Rows:
    """A row for each run of an optimizer's best rate."""
    _, seen = (data := open_data(DATA).sequential(SEQ_LEN))[: len(data)]
    counts = seen.flatten().bincount(minlength=len(open_data(DATA).token_bytes))
    inputs, targets = (held := open_data(DATA, split="val").sequential(SEQ_LEN))[: len(held)]
    rows = []
    for best in tune([row for row in read_ladder(ladder) if is_usable(row)], "6nd"):
        for run in best.runs:
            model = open_run(run["run"]).load_model().model.eval()
            found = measures(model, inputs, targets, bins_of(counts / counts.sum()))
            about = {name: run[name] for name in ("name", "opt", "lr", "seed", "seconds", "final_loss")}
            rows.append({**about, **{name: [round(value, 4) for value in values] for name, values in found.items()}})
    return rows


def _interval(values: list[float]) -> Interval:
    return student_interval(mean(values), stdev(values) / math.sqrt(len(values)), len(values) - 1)


def table(rows: Rows) -> Table:
    """A line for each optimizer and measure, a column for each bin, with 95% intervals of the ratio over seeds."""
    lines = []
    for opt, name in NAMES.items():
        own = [row for row in rows if row["opt"] == opt]
        ratios = [_interval(list(values)) for values in zip(*(row["ratio"] for row in own), strict=True)]
        losses = [mean(values) for values in zip(*(row["loss"] for row in own), strict=True)]
        cells = [
            f"{(each.low + each.high) / 2:.2f} ± {(each.high - each.low) / 2:.2f}, {loss:.2f}"
            for each, loss in zip(ratios, losses, strict=True)
        ]
        lines.append([f"{name} at {own[0]['lr']:.2g}", *cells, f"{mean(row['final_loss'] for row in own):.3f}"])
    return ["optimizer", *(f"f {each}" if "above" in each else each for each in BINS), "loss of all"], lines


def fill(page: str, rows: Rows) -> str:
    """The page with the table of the rows."""
    return fill_parts(page, "rare", {"table": as_markdown(table(rows))})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", type=Path, nargs="?")
    if (ladder := parser.parse_args().ladder) is not None:
        RESULTS.write_text("".join(json.dumps(row) + "\n" for row in measure(ladder)), encoding="utf-8")
    stored = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), stored), encoding="utf-8")
