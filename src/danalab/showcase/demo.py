"""A demonstration in minutes on a laptop CPU: corpus, tokenizer, AdamW and ADana tuned alike, figures, table, samples.

    out/index.html                 everything on one page
    out/loss-tokens.png, ...       the figures, as PNG, SVG and PDF
    out/table.md, demo.json        the numbers
    out/runs/NAME/                 ordinary run folders: `danalab compare`, `generate`, `eval` work on them

Start it again to continue after an interruption.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from danalab.files import write_atomically, write_json
from danalab.report.comparison import COLUMNS, ComparedRun, compare, markdown_table, table_cells
from danalab.report.data import RunCurve, read_curve
from danalab.report.figures.drawing import save_figure, svg_text
from danalab.report.figures.training import CURVES_CAPTION, loss_figure, lr_figure
from danalab.report.page import Page
from danalab.showcase import DemoConfig

if TYPE_CHECKING:
    from danalab.sweep.jobs import Job

MODEL = {"arch": "enoki", "d_model": 128, "n_layers": 2, "n_heads": 2}
SEQ_LEN = 128
BATCH_SIZE = 8
EVAL_BATCHES = 4
"""Validation windows of an evaluation, in batches; the last one reads the whole split."""
TRIALS = {"adamw": (2e-3, 4e-3, 8e-3), "adana": (5e-4, 1e-3, 2e-3)}
"""Peak learning rates tried for each optimizer, equally many, all at full length."""
PROMPTS = ("def read_", "import ", '    """Return the ')


@dataclass(frozen=True)
class Demo:
    """The results."""

    rows: list[ComparedRun]
    """The best trial of each optimizer, all seeds."""
    trials: list[ComparedRun]
    """All trials."""
    page: Path

    def as_dict(self) -> dict[str, Any]:
        runs, trials = ([asdict(row) for row in rows] for rows in (self.rows, self.trials))
        return {"page": str(self.page), "runs": runs, "trials": trials}


def run_demo(config: DemoConfig) -> Demo:
    """Prepare the corpus, train all trials, compare the best, draw and write everything into `config.out`."""
    from danalab.data import resolve_dataset
    from danalab.sweep.pool import run_jobs

    config.out.mkdir(parents=True, exist_ok=True)
    data = resolve_dataset("stdlib", f"bpe-{config.vocab_size}", config.out / "datasets")
    trials = [_job(config, data, opt, lr, seed=0) for opt, rates in TRIALS.items() for lr in rates]
    run_jobs(trials, parallel=config.jobs, title="learning-rate trials")
    curves = [read_curve(job.folder) for job in trials]
    best = [min((c for c in curves if c.opt == opt), key=lambda c: c.final.val_loss) for opt in TRIALS]

    tuned = [(curve.opt, curve.config["config"]["lr"]) for curve in best]
    repeats = [_job(config, data, *each, seed=seed) for each in tuned for seed in range(1, config.seeds)]
    run_jobs(repeats, parallel=config.jobs, title="more seeds at the best learning rates")
    finals = best + [read_curve(job.folder) for job in repeats]
    demo = Demo(compare(finals, best[0].name), compare(curves, best[0].name), config.out / "index.html")
    _write(config, demo, finals, curves)
    return demo


def _job(config: DemoConfig, data: Path, opt: str, lr: float, seed: int) -> "Job":
    from danalab.sweep.jobs import Job

    steps = config.tokens // (BATCH_SIZE * SEQ_LEN)
    own = {"opt": opt, "lr": lr, "seed": seed, "data_seed": 1337 + seed, "data": str(data)}
    sizes = {"seq_len": SEQ_LEN, "batch_size": BATCH_SIZE, "iterations": steps, "eval_batches": EVAL_BATCHES}
    times = {"eval": 30, "log": 60, "ckpt": 4}
    intervals = {f"{what}_interval": max(1, steps // count) for what, count in times.items()}
    name = f"{opt}-lr{lr:g}" if seed == 0 else f"{opt}-lr{lr:g}-seed{seed}"
    return Job(config.out / "runs" / name, {**MODEL, **own, **sizes, **intervals})


def _write(config: DemoConfig, demo: Demo, finals: Sequence[RunCurve], curves: Sequence[RunCurve]) -> None:
    figures = {}
    for axis, words in (("tokens", "tokens"), ("flops", "compute")):
        caption = f"Validation loss against training {words}. {CURVES_CAPTION}"
        figures[f"loss-{axis}"] = loss_figure(finals, axis, finals[0]), caption
    figures["lr"] = lr_figure(curves), "Final validation loss of every learning-rate trial."
    page = Page("AdamW and ADana, side by side", _setting(config, demo))
    page.heading("Results")
    for sentence in verdict(demo.rows):
        page.paragraph(sentence)
    page.table(list(COLUMNS), [table_cells(row) for row in demo.rows])
    for stem, (figure, caption) in figures.items():
        svg = svg_text(figure)
        save_figure(figure, config.out / stem, svg)
        page.figure(figure, caption, svg=svg)
    page.heading("All trials")
    page.table(list(COLUMNS), [table_cells(row) for row in demo.trials])
    page.heading("Samples")
    for curve in finals[: len(TRIALS)]:
        page.paragraph(f"{curve.opt}, peak learning rate {curve.config['config']['lr']:g}:")
        for text in _samples(config.out / "runs" / curve.name):
            page.verbatim(text)
    write_atomically(config.out / "table.md", markdown_table(demo.rows))
    write_json(config.out / "demo.json", demo.as_dict())
    write_atomically(demo.page, page.render())


def _setting(config: DemoConfig, demo: Demo) -> str:
    row = demo.rows[0]
    trials = len(next(iter(TRIALS.values())))
    return (
        f"Enoki with {row.params:,} parameters on Python's standard library, byte-pair encoding of {config.vocab_size} "
        f"tokens, {row.tokens:,} training tokens. Each optimizer had {trials} learning-rate trials at full length; "
        "everything but optimizer and learning rate is the same."
    )


def verdict(rows: Sequence[ComparedRun]) -> list[str]:
    """The results in sentences."""
    by_opt = {opt: [row for row in rows if row.opt == opt] for opt in TRIALS}
    losses = {opt: [row.val_loss for row in group] for opt, group in by_opt.items()}
    adamw, adana = mean(losses["adamw"]), mean(losses["adana"])
    winner, loser = ("ADana", "AdamW") if adana < adamw else ("AdamW", "ADana")
    ends = f"({min(adamw, adana):.4f} against {max(adamw, adana):.4f})"
    first = f"{winner} ends {abs(adamw - adana):.4f} nats/token below {loser} {ends}."
    seeds = len(losses["adana"])
    spread = "One seed: the noise is not known; --seeds 3 measures it."
    if seeds > 1:
        noise = f"AdamW {stdev(losses['adamw']):.4f}, ADana {stdev(losses['adana']):.4f}"
        spread = f"Spread over {seeds} seeds (standard deviation): {noise}."
    saved = [row.compute_saved for row in by_opt["adana"] if row.compute_saved is not None]
    if len(saved) < seeds:
        compute = f"ADana reached AdamW's final loss in {len(saved)} of {seeds} runs."
    else:
        compute = f"ADana reached AdamW's final loss with {mean(saved):.0%} of the compute saved."
    return [first, spread, compute]


def next_steps(demo: Demo) -> list[str]:
    """Three commands to type next; `make demo` leaves a shell that does not know `danalab` yet."""
    best = min(demo.rows, key=lambda row: row.val_loss)
    run = shlex.quote(str(demo.page.parent / "runs" / best.run))
    activate = Path(sys.prefix, "bin", "activate")
    lines = ["Next:"]
    if shutil.which("danalab") is None and activate.exists():
        lines.append(f"  source {shlex.quote(os.path.relpath(activate))}")
    return [
        *lines,
        f'  danalab generate --run {run} --prompt "def read_"   # text of the better model',
        "  danalab train --d-model 64 --n-layers 2 --n-heads 1 --seq-len 128 --batch-size 8 --iterations 300",
        "  danalab speedrun --preset cpu-tiny --out speedrun   # a chat of your own, in minutes",
    ]


def _samples(folder: Path) -> list[str]:
    from danalab.train.run.exchange import open_generator

    generator = open_generator(folder)
    return [prompt + generator.complete(prompt, seed=0, temperature=0.7, top_k=40).text for prompt in PROMPTS]
