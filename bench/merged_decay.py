"""Is a merged model as good as one whose learning rate really decayed? The answer is in docs/horizon.md.

    danalab data prepare synthetic --language words=34 answers=16 distances=1 questions=0.4 document_tokens=64 \
        --out datasets/horizon
    python bench/merged_decay.py           # ten minutes of one core; appends to bench/results/merged_decay_cpu.jsonl
    python bench/merged_decay.py --table   # the table of the page from that file

The smallest model of bench/horizon_cpu.yaml, AdamW and ADana, with the weight decay of the best linear run at f = 16.
A run at a constant rate has eleven checkpoints in its last fifth. From the beginning of that fifth another run really
decays, as 1 - sqrt. Two rates are tried on seed 0; two more seeds run at the best ones.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from scipy import stats

from danalab.data import open_data
from danalab.train import TrainConfig, train
from danalab.train.evaluation import ValidationLoss
from danalab.train.run.merge import merge_run
from danalab.train.run.open import open_run

ROWS = Path(__file__).parent / "results" / "merged_decay_cpu.jsonl"
DATA = "horizon"
STEPS = {4: 510, 16: 2040}
"""Horizon f -> steps."""
SHARE, PARTS = 0.2, 10
"""Of the run that decays; intervals between its checkpoints."""
RATES = {"adamw": (0.01, 0.03), "adana": (0.003, 0.01)}
DECAY = {"adamw": {"weight_decay": 0.55}, "adana": {"weight_decay": 0.0196, "wd_ts": 204.0}}
COLUMNS = ("constant", "merged linear", "merged 1-sqrt", "merged 1-sqrt of 3", "decayed")


def settings(opt: str, lr: float, seed: int, **more: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "arch": "enoki", "d_model": 12, "n_layers": 1, "n_heads": 2, "seq_len": 64, "batch_size": 8, "data": DATA,
        "opt": opt, "lr": lr, "seed": seed, "data_seed": 1337 + seed, "warmup_steps": 10, "scheduler": "wsd",
        "eval_interval": 0, "final_eval_batches": 1, "ckpt_interval": 0, "log_interval": 100, **DECAY[opt],
    }  # fmt: skip
    return TrainConfig(**{**values, **more})


def checkpoints(steps: int) -> list[int]:
    return [round(steps * (1 - SHARE + SHARE * part / PARTS)) for part in range(PARTS + 1)]


class Measure:
    """Validation loss of a run's newest checkpoint, on the windows of docs/horizon.md's rows [nats/token]."""

    def __init__(self) -> None:
        windows = open_data(DATA, split="val").sequential(64)
        device = torch.device("cpu")
        self._loss = ValidationLoss(windows, None, batch_size=64, n_fixed=2048, autocast=nullcontext, device=device)

    def __call__(self, run: Path) -> float:
        result = self._loss.spread(open_run(run).load_model().model, self._loss.n_fixed)
        assert result is not None
        return result.loss


def measure(opt: str, f: int, lr: float, seed: int, folder: Path, loss: Measure) -> dict[str, Any]:
    """Losses of a run at a constant rate, of its merged checkpoints, and of a run that decays from one of them."""
    of = checkpoints(STEPS[f])
    more: dict[str, Any] = {"iterations": STEPS[f], "keep_steps": tuple(map(str, of)), "fract_decay": 0.0}
    whole = train(settings(opt, lr, seed, **more, run_dir=folder / "constant"))
    losses = {"constant": loss(whole)}
    for decay, chosen, note in (("linear", of, ""), ("1-sqrt", of, ""), ("1-sqrt", of[:: PARTS // 2], " of 3")):
        name = f"merged {decay}{note}"
        losses[name] = loss(merge_run(whole, folder / name, steps=chosen, decay=decay).folder)
    start = whole / "checkpoints" / f"step-{of[0]:08d}"
    more |= {"keep_steps": (), "fract_decay": SHARE, "decay_type": "sqrt", "resume_from": start}
    losses["decayed"] = loss(train(settings(opt, lr, seed, **more, run_dir=folder / "decayed")))
    return {"opt": opt, "f": f, "lr": lr, "seed": seed, **losses}


def best_rate(rows: list[dict[str, Any]], opt: str, f: int) -> float:
    tried = [row for row in rows if (row["opt"], row["f"], row["seed"]) == (opt, f, 0)]
    return min(tried, key=lambda row: row["decayed"])["lr"]


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.is_file() else []


def run_all() -> None:
    torch.set_num_threads(1)
    loss = Measure()
    for f, opt, seed in itertools.product(STEPS, RATES, (0, 1, 2)):
        for lr in RATES[opt] if seed == 0 else [best_rate(read(), opt, f)]:
            if any((row["opt"], row["f"], row["lr"], row["seed"]) == (opt, f, lr, seed) for row in read()):
                continue
            with tempfile.TemporaryDirectory() as folder:
                row = measure(opt, f, lr, seed, Path(folder), loss)
            with ROWS.open("a") as file:
                file.write(json.dumps(row) + "\n")


def table() -> str:
    """Means over seeds at the best rate, and merged 1-sqrt - decayed, paired by seed, with a 95% t interval."""
    rows = read()
    lines = [f"| optimizer | f | {' | '.join(COLUMNS)} | merged - decayed |", "|---" * (len(COLUMNS) + 3) + "|"]
    for opt in RATES:
        for f in STEPS:
            chosen = [row for row in rows if (row["opt"], row["f"], row["lr"]) == (opt, f, best_rate(rows, opt, f))]
            losses = [f"{statistics.mean(row[name] for row in chosen):.4f}" for name in COLUMNS]
            gaps = [row["merged 1-sqrt"] - row["decayed"] for row in chosen]
            half = stats.t.ppf(0.975, len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
            gap = f"{statistics.mean(gaps):+.4f} ± {half:.4f}"
            lines.append(f"| {opt} | {f} | {' | '.join(losses)} | {gap} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true")
    print(table()) if parser.parse_args().table else run_all()
