"""Optimizers through the whole pipeline: speedruns with several seeds, as rows and a table in bench/results/chat_cpu.

python bench/chat.py [--opts adamw adana muon] [--seeds 3] [--preset cpu-tiny] [--sft-opt NAME] [--rl-opt NAME]
                     [--out runs/chat]

Start it again to continue; the table has the speedruns that are finished. Errors are standard errors over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from danalab.files import write_atomically
from danalab.post.presets import SpeedrunConfig
from danalab.post.speedrun import STAGES, Speedrun
from danalab.report.formats import as_markdown
from danalab.report.speedrun import as_json, write_report
from danalab.train.callbacks.console import log_to_stderr

RESULTS = Path(__file__).parent / "results" / "chat_cpu"


def run_all(flags: argparse.Namespace) -> None:
    """Make all speedruns, seed by seed; rows and table are written after each."""
    rows: list[dict[str, Any]] = []
    data = flags.out / "datasets"
    data.mkdir(parents=True, exist_ok=True)
    for seed in range(flags.seeds):
        for opt in flags.opts:
            config = SpeedrunConfig(
                preset=flags.preset, out=flags.out / f"{opt}-{seed}", opt=opt, sft_opt=flags.sft_opt,
                rl_opt=flags.rl_opt, seed=seed,
            )  # fmt: skip
            speedrun = Speedrun(config)
            speedrun.open()
            if not (speedrun.out / "datasets").exists():
                (speedrun.out / "datasets").symlink_to(data.resolve())  # the same for all
            speedrun.run()
            write_report(speedrun)
            rows.append({"preset": flags.preset, "opt": opt, "seed": seed, **_results(speedrun)})
            RESULTS.mkdir(parents=True, exist_ok=True)
            write_atomically(RESULTS / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
            write_atomically(RESULTS / "table.md", as_markdown(table(rows)))


def _results(speedrun: Speedrun) -> dict[str, Any]:
    """Facts and scores of each stage, without paths of this machine."""
    found = as_json(speedrun)
    return {stage: {name: value for name, value in found[stage].items() if name != "run"} for stage in STAGES}


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line for each optimizer: losses of base and fine-tuning, the score of each task after each stage, and the
    change by reinforcement learning, which is a difference within each seed."""
    tasks = list(rows[0]["base"]["scores"])
    headings = ["optimizer", "seeds", "base loss", "sft loss"]
    headings += [f"{task} {column}" for task in tasks for column in (*STAGES, "rl - sft")]
    lines = []
    for opt in dict.fromkeys(row["opt"] for row in rows):
        runs = [row for row in rows if row["opt"] == opt]
        line = [opt, str(len(runs))]
        line += [_over_seeds([run[stage]["val/loss"] for run in runs], 1, 4) for stage in ("base", "sft")]
        for task in tasks:
            scores = {stage: [run[stage]["scores"][task]["mean"] for run in runs] for stage in STAGES}
            gains = [after - before for after, before in zip(scores["rl"], scores["sft"], strict=True)]
            line += [_over_seeds(values, 100, 1) for values in (*scores.values(), gains)]
        lines.append(line)
    return headings, lines


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
    run_all(flags)
    print((RESULTS / "table.md").read_text())


if __name__ == "__main__":
    main()
