"""A demonstration in minutes on a laptop CPU: corpus, tokenizer, AdamW and ADana tuned alike, figures, table, samples.

    out/report.md                  the answer, the table, the samples
    out/loss-tokens.png, ...       the figures, as PNG and SVG
    out/demo.json                  the numbers
    out/runs/NAME/                 ordinary run folders: `danalab compare`, `generate`, `eval` work on them

Start it again to continue after an interruption.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from danalab.errors import UserError
from danalab.experiments.cells import Cell
from danalab.experiments.settings import DemoConfig
from danalab.files import write_atomically, write_json
from danalab.optimizer_facts import rates_to_try

TITLE = "learning rates"
MODEL = {"arch": "enoki", "d_model": 128, "n_layers": 2, "n_heads": 2}
SEQ_LEN = 128
BATCH_SIZE = 8
EVAL_BATCHES = 4
"""Validation windows of an evaluation, in batches; the last one reads the whole split."""
TRIALS = {opt: (rates_to_try(opt)[0] / 2, *rates_to_try(opt)[:2]) for opt in ("adamw", "adana")}
"""Peak learning rates tried for each optimizer, equally many, all at full length: those to begin with, a factor of 2
lower, since the best of both optimizers is the lowest of them on this model."""
PROMPTS = ("def read_", "import ", '    """Return the ')


def run_demo(config: DemoConfig) -> dict[str, Any]:
    """Prepare the corpus, train all trials, compare the best, draw and write everything into `config.out`.

    Returns:
        page, the path of the report; runs, the best trial of each optimizer with all seeds, and trials, all of them, as
        rows of `danalab.experiments.comparison`.
    """
    from danalab.data import resolve_dataset
    from danalab.experiments.comparison import compare, read_curve
    from danalab.experiments.runs import MORE_SEEDS, Runner, stopping_on_sigterm

    config.out.mkdir(parents=True, exist_ok=True)
    data = resolve_dataset("stdlib", f"bpe-{config.vocab_size}", config.out / "datasets")
    trials = [_cell(config, data, opt, lr, seed=0) for opt, rates in TRIALS.items() for lr in rates]
    with stopping_on_sigterm(), Runner(config.out, config.jobs) as runner:
        losses = runner.train(trials, TITLE)
        best = [
            min((c for c in trials if c.settings["opt"] == opt), key=lambda c: losses[c.name])
            for opt in TRIALS
        ]
        tuned = [(cell.settings["opt"], cell.settings["lr"]) for cell in best]
        repeats = [_cell(config, data, *each, seed=seed) for each in tuned for seed in range(1, config.seeds)]
        runner.train(repeats, f"{TITLE}{MORE_SEEDS}")
        for name, reason in runner.failures.items():
            raise UserError(f"run {config.out / 'runs' / name} {reason}")
    curves, finals = (
        [read_curve(config.out / "runs" / cell.name) for cell in cells]
        for cells in (trials, [*best, *repeats])
    )
    runs, tried = (compare(each, finals[0].name) for each in (finals, curves))
    demo = {"page": str(config.out / "report.md"), "runs": runs, "trials": tried}
    _write(config, demo, finals)
    return demo


def _cell(config: DemoConfig, data: Path, opt: str, lr: float, seed: int) -> Cell:
    steps = config.tokens // (BATCH_SIZE * SEQ_LEN)
    own = {"opt": opt, "lr": lr, "seed": seed, "data_seed": 1337 + seed, "data": str(data)}
    sizes = {"seq_len": SEQ_LEN, "batch_size": BATCH_SIZE, "iterations": steps, "eval_batches": EVAL_BATCHES}
    times = {"eval": 30, "log": 60, "ckpt": 4}
    intervals = {f"{what}_interval": max(1, steps // count) for what, count in times.items()}
    name = f"{opt}-lr{lr:g}" if seed == 0 else f"{opt}-lr{lr:g}-seed{seed}"
    return Cell(name, {**MODEL, **own, **sizes, **intervals})


def _write(config: DemoConfig, demo: dict[str, Any], finals: Sequence[Any]) -> None:
    from danalab.colors import save_figure
    from danalab.experiments.comparison import comparison_table, loss_figure
    from danalab.experiments.formats import as_markdown

    row = demo["runs"][0]
    lines = [
        *(f"{sentence}\n" for sentence in verdict(demo["runs"])),
        f"Enoki with {row['params']:,} parameters on Python's standard library, byte-pair encoding of "
        f"{config.vocab_size} tokens, {row['tokens']:,} training tokens. Each optimizer had {len(TRIALS[row['opt']])} "
        "learning-rate trials at full length; everything but optimizer and learning rate is the same.\n",
        as_markdown(comparison_table(demo["runs"])),
    ]
    save_figure(lambda: loss_figure(finals, "tokens", finals[0]), config.out / "loss-tokens")
    save_figure(lambda: loss_figure(finals, "compute", finals[0]), config.out / "loss-compute")
    lines.append("![Validation loss](loss-tokens.svg)\n")
    lines += ["## All trials\n", as_markdown(comparison_table(demo["trials"])), "## Samples\n"]
    for curve in finals[: len(TRIALS)]:
        lines.append(f"{curve.opt}, peak learning rate {curve.settings['lr']:g}:\n")
        lines += [f"```\n{text}\n```\n" for text in _samples(config.out / "runs" / curve.name)]
    write_json(config.out / "demo.json", demo)
    write_atomically(demo["page"], "\n".join(lines))


def verdict(rows: Sequence[Any]) -> list[str]:
    """The results in sentences."""
    by_opt = {opt: [row for row in rows if row["opt"] == opt] for opt in TRIALS}
    losses = {opt: [row["val_loss"] for row in group] for opt, group in by_opt.items()}
    adamw, adana = mean(losses["adamw"]), mean(losses["adana"])
    winner, loser = ("ADana", "AdamW") if adana < adamw else ("AdamW", "ADana")
    ends = f"({min(adamw, adana):.4f} against {max(adamw, adana):.4f})"
    first = f"{winner} ends {abs(adamw - adana):.4f} nats/token below {loser} {ends}."
    spread = "One seed per optimizer, so small differences may be noise; --seeds 3 measures it."
    if len(losses["adana"]) > 1:
        noise = f"AdamW {stdev(losses['adamw']):.4f}, ADana {stdev(losses['adana']):.4f}"
        spread = f"Spread over {len(losses['adana'])} seeds (standard deviation): {noise}."
    saved = [row["compute_saved"] for row in by_opt["adana"]]
    if None in saved:
        return [first, spread, "A run diverged: there is no compute saved to tell."]
    return [first, spread, f"ADana saved {mean(saved):.0%} of AdamW's compute at equal loss."]


def next_steps(demo: dict[str, Any]) -> list[str]:
    """Three commands to type next; `make demo` leaves a shell that does not know `danalab` yet."""
    best = min(demo["runs"], key=lambda row: row["val_loss"])
    run = shlex.quote(str(Path(demo["page"]).parent / "runs" / best["run"]))
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
    from danalab.train.run.exchange import open_text_generator

    generator = open_text_generator(folder)
    settings = {"seed": 0, "temperature": 0.7, "top_k": 40}
    return [prompt + "".join(generator.stream(prompt, **settings)) for prompt in PROMPTS]
