"""Is `danalab judge` calibrated? AdamW against itself under other seeds, and with a planted difference; and invented
differences that are far from normal.

    python bench/judge_calibration.py            # some 10 minutes of CPU; bench/results/judge_calibration.json
    python bench/judge_calibration.py --stored   # the same from the stored runs, in seconds
    python bench/judge_calibration.py --scratch  # some 50 minutes; adds `from_scratch` to that file

A pool of real runs of AdamW on the track `synthetic`, shortened, one seed each. A judgement takes two disjoint sets of
them in random order, and looks after each pair from the third on, as `judge` does; nothing counts as equal, which
is the hardest case. Planted: the contender's losses plus one and two noise floors (the standard deviation over seeds).
Judgements drawn from one pool share runs; from scratch, each of 200 makes its own, up to 20 pairs, half as long.

Invented: 200 judgements of each of `CASES`, with a row for each judgement, b (better), w (worse), n (no difference) or
u (undecided) with its pairs: `b33`. Beside it the row of the normal test alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from danalab.judge.verdict import LARGEST_RATIO, LEAST_PAIRS, bounds, decisions, log_bayes_factor, spent
from danalab.train.system.device import machine

TRACK, STEPS, LR = "synthetic", 60, 0.0169
ALPHA, MOST_PAIRS, JUDGEMENTS = 0.05, 300, 200
NOTHING = 1e-9  # what counts as equal
BOUND = 0.45  # a tenth of the loss before training [nats], as judge takes it on this track
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
    return first_decision(decisions(differences, spent(ALPHA, 1), NOTHING, BOUND))


def first_decision(made: list[str]) -> tuple[str, int]:
    """The first of the decisions after each pair that ends a judgement, and the pairs that it took."""
    return next(((made[i], i + 1) for i in range(len(made)) if made[i] != "undecided"), ("undecided", len(made)))


def one_from_scratch(i: int) -> tuple[str, int]:
    """The i-th judgement of AdamW against itself, with runs of its own: the baseline's and the contender's seeds."""
    first = 100_000 + i * 2 * SCRATCH_PAIRS
    losses = [one_run(first + k, SCRATCH_STEPS) for k in range(2 * SCRATCH_PAIRS)]
    return judgement([losses[k + 1] - losses[k] for k in range(0, len(losses), 2)])


@dataclass(frozen=True)
class Case:
    """Invented differences with a bound of INVENTED_BOUND, on the scale of the track `char` [nats]."""

    draw: Callable[[np.random.Generator], np.ndarray]
    """Differences of mean 0."""
    effect: float = 0.0
    """Added to them."""
    margin: float = NOTHING
    """What counts as equal."""
    within: bool = True
    """No difference, or hardly any, lies beyond the bound."""

    def judgement(self, seed: list[int]) -> tuple[str, str, np.ndarray]:
        """(row, row of the normal test alone, differences up to the decision)."""
        differences = self.draw(np.random.default_rng(seed)) + self.effect
        decision, n = first_decision(decisions(list(differences), spent(ALPHA, 1), self.margin, INVENTED_BOUND))
        normal, alone = first_decision(normal_decisions(differences))
        return f"{decision[0]}{n}", f"{normal[0]}{alone}", differences[:n]


INVENTED_PAIRS, INVENTED_BOUND, SCALE = 400, 0.6, 0.03


def stuck(by: float, share: float = 0.1) -> Callable[[np.random.Generator], np.ndarray]:
    """A share of the contender's seeds is stuck; the others are better by as much as makes the means equal."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        return 0.01 * rng.normal(size=INVENTED_PAIRS) + by * (rng.random(INVENTED_PAIRS) < share) - by * share

    return draw


def normal(rng: np.random.Generator) -> np.ndarray:
    return SCALE * rng.normal(size=INVENTED_PAIRS)


CASES = {
    "normal": Case(normal),
    "Student's t, 3 degrees": Case(lambda rng: SCALE * rng.standard_t(3, INVENTED_PAIRS)),
    "exponential": Case(lambda rng: SCALE * (rng.exponential(size=INVENTED_PAIRS) - 1)),
    "lognormal": Case(lambda rng: SCALE * (rng.lognormal(size=INVENTED_PAIRS) - np.exp(0.5))),
    "lognormal, mirrored": Case(lambda rng: -SCALE * (rng.lognormal(size=INVENTED_PAIRS) - np.exp(0.5))),
    "10% of seeds stuck by 0.2": Case(stuck(0.2)),
    "10% of seeds stuck by the bound, 0.6": Case(stuck(0.6)),
    "2% of seeds stuck by the bound, 0.6": Case(stuck(0.6, 0.02)),
    "10% of seeds stuck by 1.2, beyond the bound": Case(stuck(1.2), within=False),
    "1% of seeds stuck by 3, beyond the bound": Case(stuck(3.0, 0.01), within=False),
    "normal, better by 0.03": Case(normal, -0.03),
    "normal, better by 0.09": Case(normal, -0.09),
    "normal, better by 0.2": Case(normal, -0.2),
    "10% of seeds stuck by 0.2, better by 0.09": Case(stuck(0.2), -0.09),
    "normal, less than 0.01 counts as equal": Case(normal, margin=0.01),
}


def normal_decisions(differences: np.ndarray) -> list[str]:
    """Those of the normal test alone, after each pair; nothing counts as equal."""
    n = np.arange(1, len(differences) + 1)
    means = np.cumsum(differences) / n
    squares = np.maximum(np.cumsum(differences**2) - n * means**2, 1e-24)
    evidence = log_bayes_factor(n, np.minimum(n * means**2 / squares, LARGEST_RATIO))
    decided = (evidence >= -np.log(spent(ALPHA, 1))) & (n >= LEAST_PAIRS)
    return np.where(decided, np.where(means < 0, "better", "worse"), "undecided").tolist()


def invented(name: str) -> dict[str, Any]:
    """The judgements of a case, summed up and row by row."""
    case = CASES[name]
    made = [case.judgement([list(CASES).index(name), i]) for i in range(JUDGEMENTS)]
    found = [bounds(list(differences), spent(ALPHA, 1), INVENTED_BOUND) for _, _, differences in made]
    right = "b" if case.effect < 0 else "un"
    shares = {"wrong": np.mean([row[0] not in right + "u" for row, _, _ in made]),
              "wrong_normal_alone": np.mean([alone[0] not in right + "u" for _, alone, _ in made])}  # fmt: skip
    ended = [differences.mean() for row, _, differences in made if row[0] == "b"]
    return {
        "within": case.within, "effect": case.effect, **{key: float(value) for key, value in shares.items()},
        "right": float(np.mean([row[0] in right.strip("u") for row, _, _ in made])),
        "right_normal_alone": float(np.mean([alone[0] == "b" for _, alone, _ in made])) if case.effect else None,
        "median_pairs": float(np.median([int(row[1:]) for row, _, _ in made])),
        "median_pairs_normal_alone": float(np.median([int(alone[1:]) for _, alone, _ in made])),
        "covered": float(np.mean([each.low <= case.effect <= each.high for each in found])),
        "effect_at_the_stop": float(np.mean(ended) / case.effect) if case.effect and ended else None,
        "rows": " ".join(row for row, _, _ in made), "rows_normal_alone": " ".join(alone for _, alone, _ in made),
    }  # fmt: skip


def invented_row(name: str, found: dict[str, Any]) -> str:
    """A case's row of the table in notes/judge.md."""
    right = f"{found['right']:.0%}" if found["right"] else ""
    pairs = [f"{found[key]:.0f}" if right else "" for key in ("median_pairs", "median_pairs_normal_alone")]
    alone = "" if "counts as equal" in name else f"{found['wrong_normal_alone']:.1%}"
    pairs[1] = pairs[1] if alone else ""
    return f"| {name} | {found['wrong']:.1%} | {alone} | {right} | {pairs[0]} | {pairs[1]} |"


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
        "machine": before["machine"] if flags.stored else machine("cpu"),
        "track": TRACK, "steps": STEPS, "lr": LR,
        "alpha": ALPHA, "pool": len(pool),
        "judgements": JUDGEMENTS, "most_pairs": MOST_PAIRS, "bound": BOUND, "mean": float(pool.mean()), "noise": noise,
        "equal": judgements(pool, 0.0), "one_noise": judgements(pool, noise), "two_noises": judgements(pool, 2 * noise),
        # Two runs with seeds of their own: the deviation of a difference is sqrt 2 noise floors.
        "t_test_pairs": {"one_noise": pairs_of_a_t_test(0.5**0.5), "two_noises": pairs_of_a_t_test(2 * 0.5**0.5)},
        "invented_bound": INVENTED_BOUND, "invented": {name: invented(name) for name in CASES},
        **{key: before[key] for key in ("from_scratch",) if key in before},
        "losses": [round(float(x), 5) for x in pool],
    }  # fmt: skip
    flags.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key not in ("losses", "invented")}, indent=1))
    for name, each in result["invented"].items():
        print(name, {key: value for key, value in each.items() if not key.startswith("rows")})


if __name__ == "__main__":
    main()
