"""Optimizers through the whole pipeline: speedruns with several seeds, as a table in bench/results/chat.

python bench/chat.py [--opts adamw adana muon] [--seeds 3] [--preset cpu-tiny] [--sft-opt NAME] [--rl-opt NAME]
                     [--out runs/chat]

Start it again to continue. Errors are standard errors over seeds.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from danalab.chat.speedrun.pipeline import STAGES, Speedrun
from danalab.chat.speedrun.settings import SpeedrunConfig
from danalab.files import write_atomically, write_json
from danalab.report.speedrun import as_json, write_report
from danalab.report.tables.formats import as_markdown
from danalab.train.callbacks.console import log_to_stderr

RESULTS = Path(__file__).parent / "results" / "chat"


def run_all(flags: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Results of each optimizer's seeds."""
    found: dict[str, list[dict[str, Any]]] = {opt: [] for opt in flags.opts}
    for seed in range(flags.seeds):
        for opt in flags.opts:
            config = SpeedrunConfig(
                preset=flags.preset, out=flags.out / f"{opt}-{seed}", opt=opt, sft_opt=flags.sft_opt,
                rl_opt=flags.rl_opt, seed=seed,
            )  # fmt: skip
            speedrun = Speedrun(config)
            speedrun.run()
            write_report(speedrun)
            found[opt].append(as_json(speedrun))
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> tuple[list[str], list[list[str]]]:
    """A row for each optimizer: losses of base and fine-tuning, and the score of each task after each stage."""
    tasks = list(next(iter(found.values()))[0]["base"]["scores"])
    headings = ["optimizer", "seeds", "base loss", "sft loss"]
    headings += [f"{task} {stage}" for task in tasks for stage in STAGES]
    rows = []
    for opt, runs in found.items():
        row = [
            opt,
            str(len(runs)),
            *(_over_seeds([run[stage]["val/loss"] for run in runs], 1, 4) for stage in ("base", "sft")),
        ]
        for task in tasks:
            row += [_over_seeds([run[stage]["scores"][task]["mean"] for run in runs], 100, 1) for stage in STAGES]
        rows.append(row)
    return headings, rows


def _over_seeds(values: list[float], factor: float, digits: int) -> str:
    error = f" ± {factor * stdev(values) / math.sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""
    return f"{factor * mean(values):.{digits}f}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--opts", nargs="+", default=["adamw", "adana", "muon"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--preset", default="cpu-tiny")
    parser.add_argument("--sft-opt")
    parser.add_argument("--rl-opt")
    parser.add_argument("--out", type=Path, default=Path("runs/chat"))
    flags = parser.parse_args()
    log_to_stderr()
    found = run_all(flags)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for runs in found.values():
        for run in runs:
            for stage in STAGES:
                del run[stage]["run"]  # a path of this machine
    write_json(RESULTS / "table.json", {"preset": flags.preset, "results": found})
    write_atomically(RESULTS / "table.md", as_markdown(table(found)))
    print(as_markdown(table(found)))


if __name__ == "__main__":
    main()
