"""The price and the errors of `danalab judge`: pairs for a power of 80%, and wrong verdicts between equal optimizers.

python bench/judge_power.py --measure    # simulates paired differences, writes RESULTS and the page
python bench/judge_power.py              # the page from the stored rows
"""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from danalab.experiments.formats import as_markdown
from danalab.experiments.judge import LEAST_PAIRS, log_bayes_factor
from danalab.files import parse_json, read_text, write_atomically
from danalab_bench.pages import RESULTS as FOLDER
from danalab_bench.pages import fill_parts

ROOT = Path(__file__).parents[1]
RESULTS = FOLDER / "judge_power.jsonl"
PAGES = (ROOT / "docs" / "judge.md",)
ALPHA, POWER, SIMULATIONS, MOST = 0.05, 0.8, 2000, 200
EFFECTS = (2.0, 1.0, 0.5)
"""Mean differences, in standard deviations of a pair."""
Sample = Callable[[np.random.Generator], np.ndarray]
SHAPE = (SIMULATIONS, MOST)
NULLS: dict[str, Sample] = {
    "normal": lambda rng: rng.normal(size=SHAPE),
    "heavy tails (Student's t, 2.5 degrees of freedom)": lambda rng: rng.standard_t(2.5, SHAPE),
    "skewed (gamma, shape 0.3)": lambda rng: rng.gamma(0.3, size=SHAPE) - 0.3,
    "3% of the contender's runs stuck, the others slightly better": lambda rng: (
        0.1 * rng.normal(size=SHAPE) + 10 * ((rng.random(SHAPE) < 0.03) - 0.03)
    ),
}
"""Differences of pairs whose mean is 0."""


def pairs_to_decide(differences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(pairs until the judge decides that the mean is not 0, sign of the mean then) of each row; infinite: never."""
    n = np.arange(1, differences.shape[1] + 1)
    mean = np.cumsum(differences, axis=1) / n
    squares = np.maximum(np.cumsum(differences**2, axis=1) - n * mean**2, 1e-300)
    decided = (log_bayes_factor(n, n * mean**2 / squares) >= -math.log(ALPHA)) & (n >= LEAST_PAIRS)
    first = decided.argmax(axis=1)
    return np.where(decided.any(axis=1), first + 1, math.inf), np.sign(mean[np.arange(len(mean)), first])


def seeds_needed(effect: float, alpha: float) -> int:
    """Least number of pairs by which a two-sided t test shows an effect [standard deviations] with that power."""
    for n in range(2, MOST):
        if stats.nct.sf(stats.t.ppf(1 - alpha / 2, n - 1), n - 1, effect * math.sqrt(n)) >= POWER:
            return n
    raise ValueError(f"an effect of {effect} needs {MOST} pairs or more")


def measure() -> list[dict[str, Any]]:
    """A row for each effect and each null."""
    nulls, effects = [], []
    for name, draw in NULLS.items():
        pairs, sign = pairs_to_decide(draw(np.random.default_rng(1)))
        better, worse = (float(np.mean(np.isfinite(pairs) & (sign == way))) for way in (-1, 1))
        nulls.append({"null": name, "better": better, "worse": worse, "pairs": MOST})
    error = nulls[0]["better"] + nulls[0]["worse"]
    for effect in EFFECTS:
        pairs, _ = pairs_to_decide(np.random.default_rng(0).normal(size=SHAPE) - effect)
        needed = int(np.quantile(pairs, POWER, method="higher"))
        fixed, equal = (seeds_needed(effect, each) for each in (ALPHA, error))
        effects.append({"effect": effect, "judge": needed, "t_test": fixed, "t_test_equal": equal})
    return [{**row, "alpha": ALPHA, "simulations": SIMULATIONS} for row in (*effects, *nulls)]


def stored() -> list[dict[str, Any]]:
    return [parse_json(line, RESULTS) for line in read_text(RESULTS).splitlines()]


def fill(page: str) -> str:
    """The page with the tables of the stored rows."""
    effects, nulls = ([row for row in stored() if kind in row] for kind in ("effect", "null"))
    price = [
        [f"{row['effect']:g}", *(str(row[name]) for name in ("judge", "t_test_equal", "t_test"))]
        for row in effects
    ]
    errors = [[row["null"], f"{row['better']:.1%}", f"{row['worse']:.1%}"] for row in nulls]
    tests = ["t-test at the judge's measured error", "t-test at an error of 5%"]
    headings = ["effect [standard deviations of a pair]", "pairs, judge", *tests]
    parts = {
        "price": as_markdown((headings, price)),
        "errors": as_markdown(
            (["distribution of the differences, mean 0", 'says "better"', 'says "worse"'], errors)
        ),
    }
    return fill_parts(page, "judge", parts)


if __name__ == "__main__":
    if "--measure" in sys.argv[1:]:
        write_atomically(RESULTS, "".join(json.dumps(row) + "\n" for row in measure()))
    for file in PAGES:
        file.write_text(fill(file.read_text(encoding="utf-8")), encoding="utf-8")
