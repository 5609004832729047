"""The stored baselines of `danalab judge`: AdamW on every track, its rate search and paired seeds, with the machine.

    python bench/judge_baselines.py                       # all tracks; 20 minutes of CPU
    python bench/judge_baselines.py --tracks char         # one of them; the others stay as they are
    python bench/judge_baselines.py --tracks              # none: only the line of `judge --all-tracks`, whose rows are
                                                          # all_tracks in bench/results/benchmarks.jsonl

Writes the table of docs/judge.md and `src/danalab/judge/baselines.json`, which `judge` reads: by processor type and
track the settings, the noise floor (standard deviation of the loss over seeds), the time of a run, and the runs
themselves, to the last bit.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import torch

from danalab.judge.ledger import STORED, processor
from danalab.judge.tracks import TRACKS, get_track
from danalab.optim import optimizer_spec
from danalab.optim.rate_search import next_exponent
from danalab.showcase.problems import SmallProblem
from danalab.showcase.trials import SPACING, ProblemRun, train, usual_lr
from danalab.train.system.device import machine
from danalab_bench.pages import benchmark, fill_parts

PAGE = Path(__file__).parents[1] / "docs" / "judge.md"
TRIALS = 5
SEEDS = {"nanogpt": 3}
"""Paired seeds after the search; 10 where a run is short."""


def short(value: float) -> float:
    """The shortest decimal that gives the same float32."""
    exact = float(str(np.float32(value)))
    assert float(np.float32(exact)) == float(np.float32(value)) == value
    return exact


def timed(track: SmallProblem, lr: float, seed: int) -> tuple[ProblemRun, float]:
    """A run in this process, and its CPU seconds."""
    began = time.process_time()
    return train(track, optimizer_spec("adamw"), lr, seed, {}), time.process_time() - began


def measure(name: str) -> dict:
    track = get_track(name)
    start = usual_lr(optimizer_spec("adamw"), track)
    made: list[tuple[ProblemRun, float]] = []
    tried: dict[float, float] = {}
    for _ in range(TRIALS):
        exponent = next_exponent(tried)
        made.append(timed(track, start * SPACING**exponent, 0))
        tried[exponent] = made[-1][0].loss
    rate = start * SPACING ** min(tried, key=lambda exponent: tried[exponent])
    made += [timed(track, rate, seed) for seed in range(1, 1 + SEEDS.get(name, 10))]
    losses = [run.loss for run, _ in made if run.seed]
    return {
        "steps": track.steps,
        "lr": float(f"{rate:.6g}"),
        "loss": round(fmean(losses), 4),
        "noise": round(stdev(losses), 4),
        "seconds": round(median(seconds for _, seconds in made), 1),
        "at": made[0][0].steps,
        "runs": [
            {"lr": float(f"{run.lr:.6g}"), "seed": run.seed, "losses": [short(loss) for loss in run.losses]}
            for run, _ in made
        ],
    }


def table(stored: dict) -> str:
    """The table of the tracks on the page, of the first processor type."""
    tracks = next(iter(stored.values()))["tracks"]
    lines = ["| track | model | steps | AdamW's loss | noise floor | a run [CPU s] |", "|---|---|---|---|---|---|"]
    for name in TRACKS:
        track = get_track(name)
        unit = track.unit.partition("[")[2].rstrip("]")
        known = tracks.get(name)
        facts = (known["loss"], f"{known['noise']} {unit}", known["seconds"]) if known else ("not stored",) * 3
        lines.append(f"| `{name}` | {track.title} | {track.steps} | " + " | ".join(map(str, facts)) + " |")
    return "\n".join(lines)


def saved() -> str:
    """The line of `danalab judge --all-tracks` on the page: the best of the stored answers."""
    best = max(benchmark("all_tracks"), key=lambda row: row["factor"])
    lowest = min(each["factor"] for each in best["tracks"])
    return (f"`{best['command']}` says {best['factor']:.2f} times fewer steps than AdamW in the geometric mean, "
            f"{lowest:.2f} on the worst, `{best['worst']}`.\n")  # fmt: skip


def written(value: Any, depth: int = 0) -> str:
    """As JSON with a run on one line."""
    inside, end = ",\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict) and depth < 4:
        items = inside.join(f"{json.dumps(key)}: {written(each, depth + 1)}" for key, each in value.items())
        return "{" + inside[1:] + items + end + "}"
    if isinstance(value, list) and isinstance(value[0], dict):
        return "[" + inside[1:] + inside.join(map(json.dumps, value)) + end + "]"
    return json.dumps(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tracks", nargs="*", default=list(TRACKS))
    torch.set_num_threads(1)  # as the judge's processes
    for name in parser.parse_args().tracks:
        measured = measure(name)
        stored = json.loads(STORED.read_text()) if STORED.exists() else {}
        here = stored.setdefault(processor(), {"machine": machine("cpu"), "tracks": {}})
        here["tracks"][name] = measured
        STORED.write_text(written(stored) + "\n")
        head, start, rest = PAGE.read_text().partition("<!-- tracks -->\n")
        PAGE.write_text(head + start + table(stored) + "\n<!-- end" + rest.partition("<!-- end")[2])
        print(name, {key: value for key, value in measured.items() if key not in ("runs", "at")}, flush=True)
    PAGE.write_text(fill_parts(PAGE.read_text(), "judge", {"saved": saved()}))


if __name__ == "__main__":
    main()
