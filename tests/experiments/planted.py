"""A ladder on disk with planted truths, for the tests of everything that reads ladders."""

import json
import math

import numpy as np

SIZES = (10_000, 40_000, 160_000, 640_000)


def law(compute):
    return 1.7 + 300 * compute**-0.13


def plant(folder, saving=0.4, seeds=3, multipliers=(0.5, 1.0, 2.0), evaluations=25):
    """A ladder whose contender needs (1 - saving) of the baseline's compute at any loss."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, rows = np.random.default_rng(0), []
    for opt, scale in (("adamw", 1.0), ("adana", 1 - saving)):
        for params in SIZES:
            best = 3.0 * (1e4 + params) ** -0.5
            trials = [(m, 0) for m in multipliers] + [(1.0, seed) for seed in range(1, seeds)]
            for m, seed in trials:
                tokens = np.round(np.linspace(0.2, 1, evaluations) * 20 * params).astype(int).tolist()
                loss = law(6 * params * np.array(tokens) / scale) + 0.02 * math.log(m) ** 2
                loss = loss * np.exp(5e-4 * rng.standard_normal() + 1e-4 * rng.standard_normal(evaluations))
                name = f"{opt}-{params}-lrx{m:g}-s{seed}"
                points = [
                    {"step": i, "tokens": t, "val/loss": y}
                    for i, (t, y) in enumerate(zip(tokens, loss, strict=True))
                ]
                (folder / f"{name}.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
                rows.append({
                    "name": name, "run": name, "status": "finished", "opt": opt, "seed": seed, "lr": best * m,
                    "lr_multiplier": m, "params": params, "non_emb_params": params, "tokens": tokens[-1],
                    "flops": 6 * params * tokens[-1], "final_loss": loss[-1], "curve": f"{name}.jsonl", "settings": {},
                })  # fmt: skip
    (folder / "ladder.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
