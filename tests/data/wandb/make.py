"""Writes the exports beside it: a small ladder of two optimizers as Weights & Biases would export it, in four forms.

The losses are a law's, with adana at 0.6 of adamw's compute; keys are those of the published trainer.
"""

import csv
import json
import math
from pathlib import Path

HERE = Path(__file__).parent
SIZES = {2: (64, 1), 4: (128, 2), 6: (192, 3), 8: (256, 4)}  # heads: (n_embd, n_layer)
BATCH, LENGTH, VOCAB, EVALUATIONS = 8, 128, 512, 10


def law(compute: float) -> float:
    return 1.7 + 300 * compute**-0.13


def runs():
    for opt, share in (("adamw", 1.0), ("adana", 0.6)):
        for heads, (width, layers) in SIZES.items():
            params = 12 * width**2 * layers + 2 * VOCAB * width
            per_token = 72 * layers * width**2 + 6 * VOCAB * width + 12 * layers * width * LENGTH
            steps = int(20 * params / (BATCH * LENGTH)) // EVALUATIONS * EVALUATIONS
            config = {
                "model": "enoki", "opt": opt, "lr": 3e-3 / heads, "n_embd": width, "n_head": heads, "n_layer": layers,
                "qkv_dim": 32, "mlp_hidden_dim": 4 * width, "sequence_length": LENGTH, "vocab_size": VOCAB,
                "batch_size": BATCH, "acc_steps": 1, "iterations": steps, "seed": 0, "kappa": 0.85,
                "gamma_3_factor": 1.0, "wd_ts": None if opt == "adamw" else steps // 10,
            }  # fmt: skip
            history = []
            for step in range(0, steps + 1, steps // EVALUATIONS):
                tokens = step * BATCH * LENGTH
                row = {"_step": len(history), "_runtime": 2.0 * step, "iter": step, "tokens": tokens, "iter_dt": 0.01}
                compute = per_token * max(tokens, BATCH * LENGTH) / share
                row["final-val/loss" if step == steps else "val/loss"] = round(law(compute), 6)
                history.append(row)
            summary = {key: value for row in history for key, value in row.items()}
            yield f"{opt}_h{heads}", config, history, {**summary, "_wandb": {"runtime": 1}}


def write_csv(path: Path, heads: list[str], lines: list[dict]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, heads, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: "" if value is None else value for key, value in line.items()} for line in lines)


def main() -> None:
    everything = list(runs())
    objects = [
        {"id": f"id{i}", "name": name, "state": "finished", "config": {k: {"value": v} for k, v in config.items()},
         "summary": summary, "history": history}
        for i, (name, config, history, summary) in enumerate(everything)
    ]  # fmt: skip
    (HERE / "runs.json").write_text(json.dumps(objects) + "\n")
    heads = ["_step", "_runtime", "iter", "tokens", "iter_dt", "val/loss", "final-val/loss"]
    folder = HERE / "histories"
    folder.mkdir(exist_ok=True)
    for name, _, history, _ in everything:
        write_csv(folder / f"{name}.csv", heads, history)
    table = [
        {"Name": name, "State": "finished", "ID": f"id{i}", **config, "final-val/loss": history[-1]["final-val/loss"]}
        for i, (name, config, history, _) in enumerate(everything)
    ]
    write_csv(folder / "table.csv", list(table[0]), table)
    small = [each for each in everything if each[1]["n_head"] == 2]
    steps = [row["iter"] for row in small[0][2][:-1]]
    chart = [
        {"Step": step, **{
            f"{name} - {key}": value
            for name, _, history, _ in small
            for key, value in (
                ("_step", i), ("val/loss", history[i]["val/loss"]), ("val/loss__MIN", history[i]["val/loss"]),
                ("val/loss__MAX", history[i]["val/loss"]),
            )
        }}
        for i, step in enumerate(steps)
    ]  # fmt: skip
    write_csv(HERE / "chart.csv", list(chart[0]), chart)
    script = [
        {"summary": repr({k: v for k, v in summary.items() if k != "_wandb"}), "config": repr(config), "name": name}
        for name, config, _, summary in small
    ]
    write_csv(HERE / "project.csv", ["summary", "config", "name"], script)
    assert all(math.isfinite(row.get("val/loss", 1.0)) for _, _, history, _ in everything for row in history)


if __name__ == "__main__":
    main()
