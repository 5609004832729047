"""Is `danalab judge` calibrated? AdamW against itself under other seeds, and with a planted difference.

    python bench/judge_calibration.py            # some 10 minutes of CPU; bench/results/judge_calibration.json
    python bench/judge_calibration.py --scratch  # some 50 minutes; adds `from_scratch` to that file

A pool of real runs of AdamW on the track `synthetic`, shortened, one seed each. A judgement takes two disjoint sets of
them in random order, and looks after each pair from the third on, as `judge` does; nothing counts as equal, which
is the hardest case. Planted: the contender's losses plus one and two noise floors (the standard deviation over seeds).
Judgements drawn from one pool share runs; from scratch, each of 200 makes its own, up to 20 pairs, half as long.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from danalab.judge.sequential import decide, spent
from danalab.train.system.device import machine

TRACK, STEPS, LR = "synthetic", 60, 0.0169
ALPHA, MOST_PAIRS, JUDGEMENTS = 0.05, 40, 200
SCRATCH_STEPS, SCRATCH_PAIRS = 30, 20
RESULTS = Path(__file__).parent / "results"


def one_run(seed: int, steps: int = STEPS) -> float:
    import torch

    torch.set_num_threads(1)
    from danalab.judge.tracks import get_track
    from danalab.optim import optimizer_spec
    from danalab.showcase.trials import train

    return train(get_track(TRACK, steps), optimizer_spec("adamw"), LR, seed, {}).loss


def judgement(differences: list[float]) -> tuple[str, int]:
    """Decision of a judgement that looks after each pair, and the pairs that it took."""
    for n in range(3, len(differences) + 1):
        decision = decide(differences[:n], spent(ALPHA, 1), 1e-9)
        if decision != "undecided":
            return decision, n
    return "undecided", len(differences)


def one_from_scratch(i: int) -> tuple[str, int]:
    """The i-th judgement of AdamW against itself, with runs of its own: the baseline's and the contender's seeds."""
    first = 100_000 + i * 2 * SCRATCH_PAIRS
    losses = [one_run(first + k, SCRATCH_STEPS) for k in range(2 * SCRATCH_PAIRS)]
    return judgement([losses[k + 1] - losses[k] for k in range(0, len(losses), 2)])


def judgements(pool: np.ndarray, planted: float) -> dict[str, Any]:
    """Decisions of judgements drawn from a pool, and the pairs that they took."""
    rng = np.random.default_rng(0)
    decisions, pairs = [], []
    for _ in range(JUDGEMENTS):
        drawn = rng.permutation(len(pool))[: 2 * MOST_PAIRS]
        decision, n = judgement(list(pool[drawn[MOST_PAIRS:]] + planted - pool[drawn[:MOST_PAIRS]]))
        decisions.append(decision)
        pairs.append(n)
    shares = {name: decisions.count(name) / JUDGEMENTS for name in ("better", "worse", "undecided")}
    return {**shares, "median_pairs": float(np.median(pairs)), "p80_pairs": float(np.quantile(pairs, 0.8))}


def pairs_of_a_t_test(effect: float, power: float = 0.8) -> int:
    """Pairs that a t-test with a size fixed before needs to find an effect (in deviations of a difference)."""
    for n in range(3, 1000):
        edge = stats.t.ppf(1 - ALPHA / 2, n - 1)
        if stats.nct.sf(edge, n - 1, effect * n**0.5) + stats.nct.cdf(-edge, n - 1, effect * n**0.5) >= power:
            return n
    raise ValueError(effect)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pool", type=int, default=600, help="real runs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--stored", action="store_true", help="draw from the stored pool; makes no run")
    parser.add_argument("--output", type=Path, default=RESULTS / "judge_calibration.json")
    parser.add_argument("--scratch", action="store_true", help="200 judgements with runs of their own")
    flags = parser.parse_args()
    if flags.scratch:
        with ProcessPoolExecutor(flags.jobs, get_context("spawn")) as workers:
            made = []
            for each in workers.map(one_from_scratch, range(JUDGEMENTS)):
                made.append(each)
                print(len(made), *each, flush=True)
        decided = sum(decision != "undecided" for decision, _ in made)
        result = json.loads(flags.output.read_text())
        result["from_scratch"] = {
            "machine": machine("cpu"), "steps": SCRATCH_STEPS, "most_pairs": SCRATCH_PAIRS, "judgements": JUDGEMENTS,
            "runs": 2 * SCRATCH_PAIRS * JUDGEMENTS, "decided": decided, "share_decided": decided / JUDGEMENTS,
        }  # fmt: skip
        flags.output.write_text(json.dumps(result, indent=1) + "\n")
        return
    if flags.stored:
        pool = np.array(json.loads(flags.output.read_text())["losses"])
    else:
        with ProcessPoolExecutor(flags.jobs, get_context("spawn")) as workers:
            pool = np.array(list(workers.map(one_run, range(1, flags.pool + 1), chunksize=10)))
    noise = float(pool.std(ddof=1))
    before = json.loads(flags.output.read_text()) if flags.output.is_file() else {}
    result = {
        "question": "share of wrong decisions between equal sides, and pairs that a planted difference takes",
        "machine": machine("cpu"), "track": TRACK, "steps": STEPS, "lr": LR, "alpha": ALPHA, "pool": len(pool),
        "judgements": JUDGEMENTS, "most_pairs": MOST_PAIRS, "mean": float(pool.mean()), "noise": noise,
        "equal": judgements(pool, 0.0), "one_noise": judgements(pool, noise), "two_noises": judgements(pool, 2 * noise),
        # Two runs with seeds of their own: the deviation of a difference is sqrt 2 noise floors.
        "t_test_pairs": {"one_noise": pairs_of_a_t_test(0.5**0.5), "two_noises": pairs_of_a_t_test(2 * 0.5**0.5)},
        **{key: before[key] for key in ("from_scratch",) if key in before},
        "losses": [round(float(x), 5) for x in pool],
    }  # fmt: skip
    flags.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "losses"}, indent=1))


if __name__ == "__main__":
    main()
