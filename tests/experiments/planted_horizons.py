"""A simulated ladder with a planted exponent: rates tried with one seed, the best repeated with others."""

import math

import numpy as np

SIZES = {7_000: (1, 4, 16, 64), 14_000: (1, 4, 16), 28_000: (1, 4, 16)}
"""Parameters -> horizons."""
E, A, ALPHA, B, BETA = 2.3, 60.0, 0.5, 90.0, 0.4
GAIN = 1.25
"""Token multiplier of the contender at f = 1."""


def loss_at(params, horizon):
    """The baseline's loss, E + A N^-alpha + B D^-beta."""
    return E + A * params**-ALPHA + B * (20 * params * horizon) ** -BETA


def plant_horizons(exponent=1.15, *, noise=1.5e-3, seed=0, seeds=3, sizes=SIZES, rates=(0.5, 1.0, 2.0, 1.41)):
    """Rows whose contender at horizon f has the baseline's loss at GAIN f^exponent; best rates differ by rung."""
    rng, rows = np.random.default_rng(seed), []
    for params, horizons in sizes.items():
        for horizon in horizons:
            for opt in ("adamw", "adana"):
                reach = horizon if opt == "adamw" else GAIN * horizon**exponent
                best = math.log(1.2) * rng.standard_normal()

                def run(lr, s, opt=opt, params=params, horizon=horizon, reach=reach, best=best):
                    loss = loss_at(params, reach) + 0.02 * (math.log(lr) - best) ** 2
                    loss *= math.exp(noise * rng.standard_normal())
                    name = f"{opt}-{params}-f{horizon}-lr{lr}-s{s}"
                    tokens = 20 * params * horizon
                    return {
                        "name": name, "run": name, "status": "finished", "opt": opt, "seed": s, "lr": lr,
                        "lr_multiplier": lr, "kappa": None, "params": params, "non_emb_params": params,
                        "total_params": params, "tokens": tokens, "flops": 6.0 * params * tokens,
                        "final_loss": loss, "curve": f"{name}.jsonl", "settings": {"tokens_per_param": 20 * horizon},
                    }  # fmt: skip

                trials = [run(lr, 0) for lr in rates]
                chosen = min(trials, key=lambda row: row["final_loss"])["lr"]
                rows += [*trials, *(run(chosen, s) for s in range(1, seeds))]
    return rows
