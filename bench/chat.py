"""Which optimizer makes a base and which one a chat of it: speedruns with several seeds, as rows and a table in
bench/results/chat_cpu.

python bench/chat.py [--opts preset adamw adana muon] [--post] [--seeds 3] [--preset cpu-tiny] [--out runs/chat]

Each optimizer makes whole speedruns; with --post each base and mid-training also goes on with every other named
optimizer in fine-tuning and reinforcement learning. What is learned stands beside what is forgotten: the loss on the
text of the base run, before and after. Start it again to continue; the table has what is finished. Errors are standard
errors over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from danalab.files import write_atomically
from danalab.post.presets import SpeedrunConfig
from danalab.post.speedrun import STAGES, Speedrun
from danalab.report.formats import as_markdown
from danalab.report.speedrun import as_json, write_report
from danalab.train.callbacks.console import log_to_stderr
from danalab.train.evaluation.evaluator import evaluate_run

RESULTS = Path(__file__).parent / "results" / "chat_cpu"
OF_BASE = ("base", "mid", "scores/base.json", "scores/mid.json", "datasets")


def run_all(flags: argparse.Namespace) -> None:
    """Make all speedruns, seed by seed, those of one optimizer first; rows and table are written after each."""
    rows: list[dict[str, Any]] = []
    (flags.out / "datasets").mkdir(parents=True, exist_ok=True)
    pairs = [(opt, opt) for opt in flags.opts]
    pairs += [
        pair for pair in product(flags.opts, repeat=2) if flags.post and pair not in pairs and "preset" not in pair
    ]
    for (opt, post), seed in ((pair, seed) for which in (pairs[: len(flags.opts)], pairs[len(flags.opts) :])
                              for seed in range(flags.seeds) for pair in which):  # fmt: skip
        rows.append({"preset": flags.preset, "opt": opt, "post": post, "seed": seed, **_made(flags, opt, post, seed)})
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_atomically(RESULTS / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        write_atomically(RESULTS / "table.md", as_markdown(table(rows)))


def _made(flags: argparse.Namespace, opt: str, post: str, seed: int) -> dict[str, Any]:
    """Facts and scores of each stage of a speedrun, without paths of this machine."""
    named, other = (None if each == "preset" else each for each in (opt, post))
    own = flags.out / f"{opt}-{seed}"
    out = own if opt == post else flags.out / f"{opt}-then-{post}-{seed}"
    opts = {} if opt == post else {"sft_opt": other, "rl_opt": other}
    speedrun = Speedrun(SpeedrunConfig(preset=flags.preset, out=out, opt=named, seed=seed, **opts))
    speedrun.open()
    (out / "scores").mkdir(exist_ok=True)
    for name in OF_BASE:
        source = flags.out if name == "datasets" else own
        if not (out / name).exists() and (source / name).exists():
            (out / name).symlink_to((source / name).resolve())
    speedrun.run()
    write_report(speedrun)
    facts = as_json(speedrun)
    for stage in STAGES:
        file = out / f"text-loss-{stage}.json"
        if not file.is_file():
            file.write_text(json.dumps(evaluate_run(out / stage, data=speedrun.data).loss))
        facts[stage]["text_loss"] = json.loads(file.read_text())
        del facts[stage]["run"]
    return facts


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line for each pair of optimizers: the loss on text after base, sft and rl; the score of each task after each
    stage, and its change by reinforcement learning, which is a difference within each seed."""
    tasks = list(rows[0]["base"]["scores"])
    headings = ["base and mid", "sft and rl", "seeds", *(f"text loss {stage}" for stage in ("base", "sft", "rl"))]
    headings += [f"{task} {column}" for task in tasks for column in (*STAGES[1:], "rl - sft")]
    lines = []
    for opt, post in dict.fromkeys((row["opt"], row["post"]) for row in rows):
        runs = [row for row in rows if (row["opt"], row["post"]) == (opt, post)]
        line = [opt, post, str(len(runs))]
        line += [_over_seeds([run[stage]["text_loss"] for run in runs], 1, 3) for stage in ("base", "sft", "rl")]
        for task in tasks:
            scores = {stage: [run[stage]["scores"][task]["mean"] for run in runs] for stage in STAGES[1:]}
            gains = [after - before for after, before in zip(scores["rl"], scores["sft"], strict=True)]
            line += [_over_seeds(values, 100, 1) for values in (*scores.values(), gains)]
        lines.append(line)
    return headings, lines


def _over_seeds(values: list[float], factor: float, digits: int) -> str:
    error = f" ± {factor * stdev(values) / math.sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""
    return f"{factor * mean(values):.{digits}f}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--opts", nargs="+", default=["preset", "adamw", "adana", "muon"])
    parser.add_argument("--post", action="store_true", help="every optimizer after every base, too")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--preset", default="cpu-tiny")
    parser.add_argument("--out", type=Path, default=Path("runs/chat"))
    flags = parser.parse_args()
    log_to_stderr()
    run_all(flags)
    print((RESULTS / "table.md").read_text())


if __name__ == "__main__":
    main()
