"""Loss of resonance, resonance without its mixer, and attention on WikiText-2.

Three models of equal size (within 1%) see the same tokens in the same order with the same optimizer; they differ in
token mixing and in their default initialisation. All try the same learning rates with the first seed; the best rate of
each is then run with the other seeds. Losses are over the whole validation split. Differences are paired by seed and
order of the data; intervals are Student's. The runs are a resumable sweep; the result contains only numbers.

danalab data prepare text --tokenizer bpe-4096 --out DATA --input wikitext-2/train.txt --val-input wikitext-2/valid.txt
python bench/resonance_wikitext2.py --data DATA --runs FOLDER [--steps 400] [--variants]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from danalab.errors import UserError
from danalab.files import write_json
from danalab.ladder.fit.statistics import student_interval
from danalab.sweep.grid import Cell, name_of
from danalab.sweep.run import run_sweep
from danalab.train.system.device import machine

COMMON = {
    "d_model": 128, "n_layers": 4, "seq_len": 512, "batch_size": 8, "opt": "adamw", "beta1": 0.9, "beta2": 0.95,
    "weight_decay": 0.1, "grad_clip": 1.0, "z_loss": 0.0, "scheduler": "cos", "eval_interval": 200, "eval_batches": 2,
    "log_interval": 50, "ckpt_interval": 200, "device": "cpu", "dtype": "bfloat16",
}  # fmt: skip
RESONANCE = {"arch": "resonance", "mlp_dim": 320}
MODELS: dict[str, dict[str, Any]] = {
    "resonance": RESONANCE,
    "no mixer": {**RESONANCE, "mixer": "none"},
    # Attention has one more square matrix per block; its MLP is smaller by as much.
    "attention": {"arch": "llama", "n_heads": 4, "mlp_dim": 278, "tied_head": True},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "learned positions": {"learned_positions": True},
    "convolution of 4": {"conv_width": 4},
    "phases at 0.1 of the rate": {"phase_lr_factor": 0.1},
}


@dataclass(frozen=True)
class Settings:
    """What is compared, and where."""

    data: Path
    """Folder that `danalab data prepare` made."""
    runs: Path
    """Folder of the sweep."""
    lrs: tuple[float, ...] = (1.5e-3, 3e-3, 6e-3, 1.2e-2)
    seeds: tuple[int, ...] = (0, 1, 2)
    """The first is that of the trials."""
    steps: int = 400
    """Of 8 x 512 tokens."""
    jobs: int = 2
    """Runs at a time."""
    variants: bool = False
    """Train the options of resonance, too, at its best rate."""


def run_of(name: str, lr: float, seed: int, settings: Settings) -> Cell:
    """One model, or variant of resonance, with one learning rate and seed."""
    own = MODELS[name] if name in MODELS else {**RESONANCE, **VARIANTS[name]}
    varied = {"lr": lr, "seed": seed, "iterations": settings.steps}
    flags = {**COMMON, **own, **varied, "data": str(settings.data), "data_seed": 1337 + seed,
             "warmup_steps": max(1, settings.steps // 10)}  # fmt: skip
    return Cell(f"{name.replace(' ', '-')}-{name_of(varied)}", flags)


def trained(cells: Sequence[Cell], settings: Settings) -> dict[str, dict[str, Any]]:
    """Rows of the cells by name, once all are finished.

    Raises:
        UserError: a run failed; says which. Called again, it goes on from there.
    """
    swept = run_sweep(settings.runs, cells, jobs=settings.jobs, title="wikitext-2")
    rows = {row["name"]: row for row in swept.rows}
    for cell in cells:
        if rows.get(cell.name, {}).get("final_loss") is None:
            raise UserError(f"{cell.name}: not finished, or its loss is not finite; see {settings.runs}")
    return rows


def of_runs(losses: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation and 95% interval of the mean; the last two are None of one number."""
    centre, n = mean(losses), len(losses)
    if n < 2:
        return {"mean": centre, "sd": None, "interval": None}
    spread = stdev(losses)
    found = student_interval(centre, spread / math.sqrt(n), n - 1)
    return {"mean": centre, "sd": spread, "interval": [found.low, found.high]}


def best_rate(losses: Mapping[float, float]) -> float:
    """The learning rate with the least loss."""
    return min(losses, key=lambda lr: losses[lr])


def measured(names: Sequence[str], rates: Mapping[str, float], settings: Settings) -> dict[str, Any]:
    """All seeds of each model at its learning rate."""
    cells = {name: [run_of(name, rates[name], seed, settings) for seed in settings.seeds] for name in names}
    rows = trained([cell for each in cells.values() for cell in each], settings)
    found = {}
    for name, each in cells.items():
        own = [rows[cell.name] for cell in each]
        runs = [
            {"seed": row["seed"], "val_loss": row["final_loss"], "curve": curve(settings.runs / row["curve"])}
            for row in own
        ]
        losses = of_runs([run["val_loss"] for run in runs])
        init = own[0]["settings"]["init"]
        found[name] = {"params": own[0]["params"], "init": init, "lr": rates[name], "runs": runs, **losses}
    return found


def curve(file: Path) -> list[list[float]]:
    """[tokens, loss on the fixed windows] wherever it was measured."""
    rows = map(json.loads, file.read_text().splitlines())
    return [[row["tokens"], row["val/loss"]] for row in rows if "val/loss" in row]


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Of the first one's loss over the other's, seed by seed."""
    pairs = zip(one["runs"], other["runs"], strict=True)
    return of_runs([a["val_loss"] - b["val_loss"] for a, b in pairs])


def measure(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """The trials, then all seeds at the best rates.

    Args:
        say: called with each line of text.
    Raises:
        UserError: a run failed.
    """
    first = settings.seeds[0]
    cells = {(name, lr): run_of(name, lr, first, settings) for lr in settings.lrs for name in MODELS}
    rows = trained(list(cells.values()), settings)
    trials = {name: {lr: rows[cells[name, lr].name]["final_loss"] for lr in settings.lrs} for name in MODELS}
    rates = {name: best_rate(losses) for name, losses in trials.items()}
    for name, lr in rates.items():
        edge = " (an end of what was tried)" if lr in (min(settings.lrs), max(settings.lrs)) else ""
        say(f"{name:10} best at {lr:g}{edge}")
    models = measured(list(MODELS), rates, settings)
    ours = models["resonance"]
    found = {
        "benchmark": "resonance_wikitext2",
        "machine": machine("cpu"),
        "data": "WikiText-2, byte-level BPE of 4096 ids trained on its training split",
        "settings": {"common": COMMON, "models": MODELS, "steps": settings.steps, "lrs": settings.lrs},
        "tokens": settings.steps * COMMON["batch_size"] * COMMON["seq_len"],
        "trials": {name: {f"{lr:g}": loss for lr, loss in losses.items()} for name, losses in trials.items()},
        "models": models,
        "resonance_minus": {name: difference(ours, models[name]) for name in MODELS if name != "resonance"},
    }
    if settings.variants:
        variants = measured(list(VARIANTS), dict.fromkeys(VARIANTS, rates["resonance"]), settings)
        for each in variants.values():
            each["minus_resonance"] = difference(each, ours)
        found |= {"variants": variants, "variant_settings": VARIANTS}
    for name, each in {**models, **found.get("variants", {})}.items():
        say(f"{name:26} {each['params']:,} parameters, lr {each['lr']:g}: {_shown(each)} nats/token")
    for name, each in found["resonance_minus"].items():
        say(f"resonance minus {name}: {_shown(each)}")
    return found


def _shown(each: Mapping[str, Any]) -> str:
    if each["interval"] is None:
        return f"{each['mean']:.4f} (one run)"
    low, high = each["interval"]
    return f"{each['mean']:.4f}, sd {each['sd']:.4f}, 95% {low:.4f} to {high:.4f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder that `danalab data prepare` made")
    parser.add_argument("--runs", type=Path, help="folder of the sweep")
    parser.add_argument("--lrs", type=float, nargs="+", default=Settings.lrs)
    parser.add_argument("--seeds", type=int, nargs="+", default=Settings.seeds, help="the first is that of the trials")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="steps of 8 x 512 tokens")
    parser.add_argument("--jobs", type=int, default=Settings.jobs, help="runs at a time")
    parser.add_argument("--variants", action="store_true", help="train the options of resonance, too")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "resonance_wikitext2.json")
    chosen = vars(parser.parse_args())
    output = chosen.pop("output")
    if chosen["data"] is None or chosen["runs"] is None:
        print("resonance_wikitext2 needs --data and --runs, and an hour: nothing was measured")
    else:
        settings = Settings(**{**chosen, "lrs": tuple(chosen["lrs"]), "seeds": tuple(chosen["seeds"])})
        write_json(output, measure(settings, print))
        print(f"written to {output}")
