r"""Loss of resonance, resonance without its mixer, and attention on WikiText-2.

    danalab data prepare text --tokenizer bpe-4096 --out DATA --input wikitext-2/train.txt \
        --val-input wikitext-2/valid.txt
    python bench/resonance_wikitext2.py --data DATA --runs FOLDER [--steps 400] [--variants]

Three models of equal size (within 1%) see the same tokens in the same order with the same optimizer; they differ in
token mixing and in their default initialisation. All try the same learning rates with the first seed; the best rate of
each is then run with the other seeds. --variants also trains the options of resonance at its best rate. Losses are
over the whole validation split. Differences are paired by seed and order of the data; intervals are Student's.

The runs are a resumable sweep in FOLDER. The result, bench/results/resonance_wikitext2.json, contains only numbers.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from danalab.benchmarks.timing import machine
from danalab.files import write_json
from danalab.ladder.fit.statistics import student_interval
from danalab.ladder.runs.grid import Cell, name_of
from danalab.ladder.runs.sweep import run_sweep

RESULT = Path(__file__).parent / "results" / "resonance_wikitext2.json"

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


def run_of(name: str, lr: float, seed: int, arguments: argparse.Namespace) -> Cell:
    """One model, or variant of resonance, with one learning rate and seed."""
    own = MODELS[name] if name in MODELS else {**RESONANCE, **VARIANTS[name]}
    varied = {"lr": lr, "seed": seed, "iterations": arguments.steps}
    settings = {**COMMON, **own, **varied, "data": str(arguments.data), "data_seed": 1337 + seed,
                "warmup_steps": max(1, arguments.steps // 10)}  # fmt: skip
    return Cell(f"{name.replace(' ', '-')}-{name_of(varied)}", settings)


def trained(cells: Sequence[Cell], arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Rows of the cells by name, once all are finished.

    Raises:
        SystemExit: a run failed; says which. Called again, it goes on from there.
    """
    swept = run_sweep(arguments.runs, cells, jobs=arguments.jobs, title="wikitext-2")
    rows = {row["name"]: row for row in swept.rows}
    for cell in cells:
        if rows.get(cell.name, {}).get("final_loss") is None:
            raise SystemExit(f"{cell.name}: not finished, or its loss is not finite; see {arguments.runs}")
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


def measured(names: Sequence[str], rates: Mapping[str, float], arguments: argparse.Namespace) -> dict[str, Any]:
    """All seeds of each model at its learning rate."""
    cells = {name: [run_of(name, rates[name], seed, arguments) for seed in arguments.seeds] for name in names}
    rows = trained([cell for each in cells.values() for cell in each], arguments)
    found = {}
    for name, each in cells.items():
        own = [rows[cell.name] for cell in each]
        runs = [
            {"seed": row["seed"], "val_loss": row["final_loss"], "curve": curve(arguments.runs / row["curve"])}
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


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder that `danalab data prepare` made")
    parser.add_argument("--runs", type=Path, help="folder of the sweep")
    parser.add_argument("--lrs", type=float, nargs="+", default=[1.5e-3, 3e-3, 6e-3, 1.2e-2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="the first is that of the trials")
    parser.add_argument("--steps", type=int, default=400, help="steps of 8 x 512 tokens")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--variants", action="store_true", help="train what resonance has on demand, too")
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if arguments.data is None or arguments.runs is None:
        print("resonance_wikitext2 needs --data and --runs, and an hour: nothing was measured")
        return
    cells = {(name, lr): run_of(name, lr, arguments.seeds[0], arguments) for lr in arguments.lrs for name in MODELS}
    rows = trained(list(cells.values()), arguments)
    trials = {name: {lr: rows[cells[name, lr].name]["final_loss"] for lr in arguments.lrs} for name in MODELS}
    rates = {name: best_rate(losses) for name, losses in trials.items()}
    for name, lr in rates.items():
        edge = " (an end of what was tried)" if lr in (min(arguments.lrs), max(arguments.lrs)) else ""
        print(f"{name:10} best at {lr:g}{edge}", flush=True)
    models = measured(list(MODELS), rates, arguments)
    ours = models["resonance"]
    found = {
        "benchmark": "resonance_wikitext2",
        "machine": machine("cpu"),
        "data": "WikiText-2, byte-level BPE of 4096 ids trained on its training split",
        "settings": {"common": COMMON, "models": MODELS, "steps": arguments.steps, "lrs": arguments.lrs},
        "tokens": arguments.steps * COMMON["batch_size"] * COMMON["seq_len"],
        "trials": {name: {f"{lr:g}": loss for lr, loss in losses.items()} for name, losses in trials.items()},
        "models": models,
        "resonance_minus": {name: difference(ours, models[name]) for name in MODELS if name != "resonance"},
    }
    if arguments.variants:
        variants = measured(list(VARIANTS), dict.fromkeys(VARIANTS, rates["resonance"]), arguments)
        for each in variants.values():
            each["minus_resonance"] = difference(each, ours)
        found |= {"variants": variants, "variant_settings": VARIANTS}
    write_json(arguments.output, found)
    for name, each in {**models, **found.get("variants", {})}.items():
        print(f"{name:26} {each['params']:,} parameters, lr {each['lr']:g}: {_shown(each)} nats a token")
    for name, each in found["resonance_minus"].items():
        print(f"resonance minus {name}: {_shown(each)}")
    print(f"written to {arguments.output}")


def _shown(each: Mapping[str, Any]) -> str:
    if each["interval"] is None:
        return f"{each['mean']:.4f} (one run)"
    low, high = each["interval"]
    return f"{each['mean']:.4f}, sd {each['sd']:.4f}, 95% {low:.4f} to {high:.4f}"


if __name__ == "__main__":
    main()
