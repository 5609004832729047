"""Which optimizer makes a base and which one a chat of it: speedruns with several seeds, as rows and tables in
bench/results/chat_cpu.jsonl, docs/chat-optimizers.md and notes/chat.md.

python bench/chat.py [--opts preset adamw adana muon] [--cross] [--seeds 3] [--preset cpu-tiny] [--out runs/chat]
python bench/chat.py --opts adamw adana muon --rates     # other rates of fine-tuning and of reinforcement learning

Each optimizer makes whole speedruns. With --cross each base and mid-training also goes on with every other named
optimizer in fine-tuning, and that with every one in reinforcement learning. What is learned stands beside what is
forgotten: the loss on the text of the base run, before and after. Start it again to continue; the tables have what is
finished. Errors are standard errors over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from danalab.files import write_atomically
from danalab.ladder.fit.statistics import student_interval
from danalab.post.settings import STAGES
from danalab.report.formats import as_markdown
from danalab.train.callbacks.console import log_to_stderr
from danalab.train.evaluation import evaluate_run
from danalab.train.system.signals import StopRequest
from danalab.post.speedrun.pipeline import Speedrun
from danalab.post.speedrun.report import as_json, write_report
from danalab.post.speedrun.settings import PRESETS, SpeedrunConfig

RESULTS = Path(__file__).parent / "results" / "chat_cpu.jsonl"
ROOT = Path(__file__).parents[1]
PAGES = {"effects": ROOT / "docs" / "chat-optimizers.md", "rates": ROOT / "notes" / "chat.md"}
STAGE_OPTS = ("opt", "sft_opt", "rl_opt")
OF_BASE = ("base", "mid", "scores/base.json", "scores/mid.json", "text-loss-base.json", "text-loss-mid.json")
OF_SFT = ("sft", "scores/sft.json", "text-loss-sft.json")
FRACTIONS = {"sft": (0.4, 0.8, 1.6), "rl": (0.025, 0.05, 0.1, 0.2)}
"""Rates of a stage, of the base's peak rate."""
OWN = {"sft": 0.8, "rl": 0.05}
"""The preset's."""
Opts = tuple[str, str, str]
"""Of base and mid-training, of fine-tuning, of reinforcement learning."""


def run_all(flags: argparse.Namespace) -> None:
    """Make all speedruns, those of one optimizer first, then seed by seed; rows and tables are written after each."""
    rows = {_key(row): row for row in read_rows()}
    (flags.out / "datasets").mkdir(parents=True, exist_ok=True)
    whole = [(opt, opt, opt) for opt in flags.opts]
    named = [opt for opt in flags.opts if opt != "preset"]
    crossed = [opts for opts in product(named, repeat=3) if flags.cross and len(set(opts)) > 1]
    # One other optimizer in both later stages comes first: its fine-tuning is used again by the others.
    pairs, others = ([opts for opts in crossed if (opts[1] == opts[2]) == equal] for equal in (True, False))
    for which in (whole, pairs, others):
        for seed, opts in product(range(flags.seeds), which):
            row = {"preset": flags.preset, **dict(zip(STAGE_OPTS, opts, strict=True)), "seed": seed}
            rows[_key(row)] = row | _made(flags, opts, seed)
            _store([*rows.values(), *read_rates()])
            if effects := effects_table(list(rows.values())):
                _fill("effects", effects)


def run_rates(flags: argparse.Namespace) -> None:
    """Each optimizer's whole speedrun of seed 0, with other rates of one later stage; a row for each."""
    rows = []
    for opt, (stage, fractions) in product(flags.opts, FRACTIONS.items()):
        whole = _folder(flags.out, (opt, opt, opt), 0)
        for fraction in fractions:
            preset = PRESETS[flags.preset]
            settings = {**getattr(preset, stage), "lr_fraction": fraction}
            out = whole if fraction == OWN[stage] else flags.out / f"{opt}-{stage}-x{fraction:g}-0"
            config = SpeedrunConfig(preset=flags.preset, out=out, seed=0, opt=opt)
            speedrun = Speedrun(config, replace(preset, **{stage: settings}))
            speedrun.open()
            (out / "scores").mkdir(exist_ok=True)
            _link(("datasets", *OF_BASE, *(OF_SFT if stage == "rl" else ())), whole, out)  # nothing where out is whole
            stop = StopRequest()
            for step in speedrun.steps(stop)[: 3 + 2 * STAGES.index(stage)]:  # the data; training and scores of each
                step.run()
            loss = json.loads((out / stage / "summary.json").read_text()).get("val/loss")
            scores = {task["task"]: task["score"]["mean"] for task in speedrun.scores(stage).tasks}
            rows.append({"opt": opt, "stage": stage, "lr_fraction": fraction, "val_loss": loss, "scores": scores})
            _store([*read_rows(), *rows])
    _fill("rates", rates_table(rows))


def rates_table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line for each stage and optimizer; in a cell a value for each rate."""
    measures = ("arithmetic", "identity", "dialogue, turn 3")
    lines = []
    for stage, opt in dict.fromkeys((row["stage"], row["opt"]) for row in rows):
        runs = [row for row in rows if (row["stage"], row["opt"]) == (stage, opt)]
        line = [stage, opt, " / ".join(f"{row['lr_fraction']:g}" for row in runs)]
        line.append(" / ".join(f"{row['val_loss']:.3f}" for row in runs) if stage == "sft" else "-")
        line += [" / ".join(f"{100 * row['scores'][name]:.0f}" for row in runs) for name in measures]
        lines.append(line)
    return ["stage", "optimizer", "rates / the base's", "val loss", *measures], sorted(lines, reverse=True)


def read_rows() -> list[dict[str, Any]]:
    """The stored rows of speedruns."""
    return [row for row in _stored() if "stage" not in row]


def read_rates() -> list[dict[str, Any]]:
    """The stored rows of single stages at other rates."""
    return [row for row in _stored() if "stage" in row]


def _stored() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()] if RESULTS.exists() else []


def _store(rows: list[dict[str, Any]]) -> None:
    write_atomically(RESULTS, "".join(json.dumps(row) + "\n" for row in rows))


def _fill(name: str, cells: tuple[list[str], list[list[str]]]) -> None:
    head, mark, rest = PAGES[name].read_text(encoding="utf-8").partition(f"<!-- chat: {name} -->\n")
    write_atomically(PAGES[name], head + mark + as_markdown(cells) + "<!-- end -->" + rest.partition("<!-- end -->")[2])


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["preset"], *(row[name] for name in STAGE_OPTS), row["seed"])


def _made(flags: argparse.Namespace, opts: Opts, seed: int) -> dict[str, Any]:
    """Facts and scores of each stage of a speedrun, without paths of this machine."""
    base, sft, rl = opts
    out = _folder(flags.out, opts, seed)
    names = {"opt": None if base == "preset" else base}
    names |= {"sft_opt": sft, "rl_opt": rl} if len(set(opts)) > 1 else {}
    speedrun = Speedrun(SpeedrunConfig(preset=flags.preset, out=out, seed=seed, **names))
    speedrun.open()
    (out / "scores").mkdir(exist_ok=True)
    _link(("datasets",), flags.out, out)
    _link(OF_BASE, _folder(flags.out, (base, base, base), seed), out)
    _link(OF_SFT, _folder(flags.out, (base, sft, sft), seed), out)
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


def _folder(out: Path, opts: Opts, seed: int) -> Path:
    return out / f"{'-then-'.join(dict.fromkeys(opts) if opts[1] == opts[2] else opts)}-{seed}"


def _link(names: tuple[str, ...], source: Path, out: Path) -> None:
    """What another speedrun has made."""
    for name in names:
        if not (out / name).exists() and (source / name).exists():
            (out / name).symlink_to((source / name).resolve())


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line for each choice of optimizers: the loss on text after base, sft and rl; the score of each task after each
    stage, and its change by reinforcement learning, which is a difference within each seed."""
    tasks = list(rows[0]["base"]["scores"])
    headings = ["base and mid", "sft", "rl", "seeds", *(f"text loss {stage}" for stage in ("base", "sft", "rl"))]
    headings += [f"{task} {column}" for task in tasks for column in (*STAGES[1:], "rl - sft")]
    lines = []
    for opts in dict.fromkeys(map(_opts, rows)):
        runs = [row for row in rows if _opts(row) == opts]
        line = [*opts, str(len(runs))]
        line += [_over_seeds([run[stage]["text_loss"] for run in runs], 1, 3) for stage in ("base", "sft", "rl")]
        for task in tasks:
            scores = {stage: [run[stage]["scores"][task]["mean"] for run in runs] for stage in STAGES[1:]}
            gains = [after - before for after, before in zip(scores["rl"], scores["sft"], strict=True)]
            line += [_over_seeds(values, 100, 1) for values in (*scores.values(), gains)]
        lines.append(line)
    return headings, lines


def effects_table(rows: list[dict[str, Any]], baseline: str = "adamw") -> tuple[list[str], list[list[str]]] | None:
    """What an optimizer changes at one stage where the other stages and the seed are equal; None: nothing to compare.

    A line for each stage and optimizer: the difference from the baseline's runs in what stands after the last stage,
    its mean over the choices of the other stages, and its 95% interval over seeds. Choices that lack a seed are left
    out. Where all choices are there, also a line for a later stage that has the base's own optimizer, against the
    others: in that mean what an optimizer does at each stage cancels.
    """
    runs: dict[Opts, dict[int, Any]] = defaultdict(dict)
    for row in rows:
        if "preset" not in _opts(row):
            runs[_opts(row)][row["seed"]] = row["rl"]
    seeds = sorted(set().union(*runs.values()))
    runs = {opts: ends for opts, ends in runs.items() if len(ends) == len(seeds) > 1}
    lines = []
    for place, stage in enumerate(("base and mid", "sft", "rl")):
        for opt in sorted({opts[place] for opts in runs} - {baseline}):
            mine = [opts for opts in runs if opts[place] == opt and _at(opts, place, baseline) in runs]
            if mine:
                other = [_at(opts, place, baseline) for opts in mine]
                lines.append([f"{stage}: {opt} - {baseline}", str(len(mine)), *_effects(runs, mine, other, seeds)])
    named = {opts[0] for opts in runs}
    if runs.keys() == set(product(named, repeat=3)):
        for place, stage in ((1, "sft"), (2, "rl")):
            own, other = ([opts for opts in runs if (opts[place] == opts[0]) == same] for same in (True, False))
            lines.append([f"{stage}: the base's - another", str(len(runs)), *_effects(runs, own, other, seeds)])
    return (["stage and optimizers", "choices", "seeds", *EFFECTS], lines) if lines else None


def _at(opts: Opts, place: int, opt: str) -> Any:
    return (*opts[:place], opt, *opts[place + 1 :])


def _effects(runs: dict[Opts, dict[int, Any]], mine: list[Opts], other: list[Opts], seeds: list[int]) -> list[str]:
    """The number of seeds, and each measure's difference of two means, with its interval over seeds."""
    cells = [str(len(seeds))]
    for value, factor, digits in EFFECTS.values():
        first, second = (
            [mean(factor * value(runs[opts][seed]) for opts in of) for seed in seeds] for of in (mine, other)
        )
        each = [a - b for a, b in zip(first, second, strict=True)]
        interval = student_interval(mean(each), stdev(each) / math.sqrt(len(each)), len(each) - 1)
        cells.append(f"{mean(each):+.{digits}f} ({interval.low:+.{digits}f} to {interval.high:+.{digits}f})")
    return cells


EFFECTS: dict[str, tuple[Callable[[Any], float], float, int]] = {
    "text loss [nats/token]": (lambda end: end["text_loss"], 1, 2),
    "arithmetic [points]": (lambda end: end["scores"]["arithmetic"]["mean"], 100, 1),
    "identity [points]": (lambda end: end["scores"]["identity"]["mean"], 100, 1),
    "turn 3 [points]": (lambda end: end["scores"]["dialogue, turn 3"]["mean"], 100, 1),
}
"""Column -> what it reads of the last stage, its factor and digits."""


def _opts(row: dict[str, Any]) -> Opts:
    return row["opt"], row["sft_opt"], row["rl_opt"]


def _over_seeds(values: list[float], factor: float, digits: int) -> str:
    error = f" ± {factor * stdev(values) / math.sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""
    return f"{factor * mean(values):.{digits}f}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--opts", nargs="+", default=["preset", "adamw", "adana", "muon"])
    parser.add_argument("--cross", action="store_true", help="other optimizers in later stages, too")
    parser.add_argument("--rates", action="store_true", help="other rates of the later stages, seed 0")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--preset", default="cpu-tiny")
    parser.add_argument("--out", type=Path, default=Path("runs/chat"))
    flags = parser.parse_args()
    log_to_stderr()
    (run_rates if flags.rates else run_all)(flags)
    print(as_markdown(table(read_rows())))


if __name__ == "__main__":
    main()
