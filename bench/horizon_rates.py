"""The best rate against the horizon, closely, and at a horizon it has not seen: tables of horizon.md in docs and notes.

danalab ladder bench/horizon_rates.yaml              # strength of weight decay c sqrt(f)
danalab ladder bench/horizon_rates_fixed.yaml        # strength c
python bench/horizon_rates.py --predict              # losses at f = 256, before they are run
danalab ladder bench/horizon_256.yaml                # with the law and without
danalab ladder bench/horizon_soap.yaml               # SOAP, of strength c sqrt(f)
danalab ladder bench/horizon_dana_muon.yaml          # DanaMuon, of strength c sqrt(f)
python bench/horizon_rates.py [LADDER ...]           # packs the rows of these folders, in this order; writes the tables
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from danalab_annexes.ladder.exponents import ExponentLaw, Exponents

from danalab.files import read_json, write_json
from danalab.ladder.analysis import Analysis, analyse
from danalab.ladder.fit.statistics import student_interval
from danalab.ladder.fit.tuning import Tuned, tune
from danalab.ladder.rows import pack, read_ladder
from danalab.report.formats import as_markdown
from danalab.sweep.rows import has_diverged, is_usable
from danalab_bench.pages import cost, fill_parts

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGES = (ROOT / "docs" / "horizon.md", ROOT / "notes" / "horizon.md")
BEFORE, CLOSE, FIXED, LAST, SOAP, DANA_MUON = (RESULTS / f"{name}_cpu" for name in (
    "horizon", "horizon_rates", "horizon_rates_fixed", "horizon_256", "horizon_soap", "horizon_dana_muon"))  # fmt: skip
PREDICTIONS = RESULTS / "horizon_256_predictions.json"
UNSEEN, SEEDS = 256, 3
OPTS = ("adamw", "dana-star-mk4")
"""Of the runs at the horizon that was not seen; ARMS of each."""
ARMS = ("law", "none")
Rows = list[dict[str, Any]]


def close_rows() -> Rows:
    """The closely measured size, at strength c sqrt(f): SOAP and DanaMuon were measured after the others."""
    return [row for folder in (CLOSE, SOAP, DANA_MUON) for row in read_ladder(folder)]


def exponents(rows: Rows) -> dict[str, ExponentLaw]:
    """Optimizer -> law of the best rate over the axes that vary; nothing else is fitted."""
    tuned = _tuned(rows)
    found = Analysis("adamw", "exact", tuned, tuned, [])
    for opt in found.opts:
        Exponents().analyse_optimizer(found, opt, rows)
    return found.studies[Exponents.name]["lr"]


def _tuned(rows: Rows) -> list[Tuned]:
    return tune([row for row in rows if is_usable(row)], "exact", [row for row in rows if has_diverged(row)])


def with_other_sizes(close: Rows, before: Rows) -> Rows:
    """The rows of the closely measured size, and those of the other sizes in the experiment before."""
    opts, sizes = {row["opt"] for row in close}, {row["params"] for row in close}
    return [*close, *(row for row in before if row["opt"] in opts and row["params"] not in sizes)]


def table(before: Rows, close: Rows, fixed: Rows) -> tuple[list[str], list[list[str]]]:
    """Exponent of f of each optimizer's best rate, from each set of rows."""
    sets = (close, with_other_sizes(close, before), fixed)
    laws = [exponents(before), *map(exponents, sets)]
    headings = ["optimizer", "before", "3.3 k parameters", "with the other sizes", "3.3 k, constant strength"]
    names = dict.fromkeys(row["opt"] for row in close)
    return headings, [[opt, *(_cell(law.get(opt)) for law in laws)] for opt in names]


def _cell(law: ExponentLaw | None) -> str:
    if law is None or "f" not in law.exponents:
        return "-"
    known = law.intervals.get("f")
    return f"{law.exponents['f']:.2f}" + (f" ({known.low:.2f} to {known.high:.2f})" if known else " (edges)")


def rates(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Best rate tried and its mean loss, by optimizer and horizon."""
    tuned = _tuned(rows)
    horizons = sorted({each.tokens for each in tuned})
    steps = [f"f = {round(tokens / horizons[0])}" for tokens in horizons]
    lines = []
    for opt in dict.fromkeys(each.opt for each in tuned):
        mine = sorted((each for each in tuned if each.opt == opt), key=lambda each: each.tokens)
        lines.append([opt, *(f"{each.lr:.2g}{' (edge)' if each.at_edge else ''}, {each.loss:.3f}" for each in mine)])
    return ["optimizer", *steps], lines


def predict(close: Rows, before: Rows) -> dict[str, Any]:
    """Rates and predicted losses at f = 256, by what f = 1 to 64 say of the two optimizers.

    With the law, that of all sizes, the rate is a P^d 256^h; without, as at f = 1, which a parabola in log rate says
    to cost k (h log 256)^2 nats. Weight decay follows sqrt(f) with the law and is constant without, whose effect is not
    predicted. Intervals: of h, of k, and of three seeds.
    """
    rows = [row for row in close if row["opt"] in OPTS]
    found = analyse(rows)
    over_horizons = found.studies["horizon"].law
    assert over_horizons is not None
    laws = exponents(with_other_sizes(rows, before))
    rng, predictions = np.random.default_rng(0), {}
    for opt in OPTS:
        law, curve, size = laws[opt], found.shared_curvatures[opt], found.at(opt)[0]
        h, lr = law.exponents["f"], law.a * size.non_emb_params ** law.exponents["P"]
        best = float(over_horizons(opt, size.params, UNSEEN))
        h_sd, k_sd = (each.high - each.low for each in (law.intervals["f"], curve.interval))
        drawn_h = rng.normal(h, h_sd / 2 / _quantile(law.n_rungs - 3), 10_000)
        drawn_k = np.clip(rng.normal(curve.curvature, k_sd / 4, 10_000), 0, None)
        noise = _noise(found, opt) * best * math.sqrt(2 / SEEDS)
        penalty = drawn_k * (drawn_h * math.log(UNSEEN)) ** 2 + rng.normal(0, noise, 10_000)
        predictions[opt] = {
            "lr": {"law": lr * UNSEEN**h, "none": lr},
            "exponent": h,
            "loss_with_the_law": best,
            "none_minus_law": {
                "value": float(curve.curvature * (h * math.log(UNSEEN)) ** 2),
                "low": float(np.quantile(penalty, 0.025)), "high": float(np.quantile(penalty, 0.975)),
            },
        }  # fmt: skip
    return {
        "f": UNSEEN,
        "made_from": sorted(row["name"] for row in rows if is_usable(row)),
        "predictions": predictions,
    }


def _quantile(freedom: int) -> float:
    return student_interval(0.0, 1.0, freedom, 0.95).high


def _noise(found: Analysis, opt: str) -> float:
    """Standard deviation of the log loss over seeds at the longest horizon."""
    longest = max((each for each in found.tuned if each.opt == opt), key=lambda each: each.tokens)
    return float(np.std(np.log([row["final_loss"] for row in longest.runs]), ddof=1))


def verdicts(predicted: dict[str, Any], last: Rows) -> tuple[list[str], list[list[str]]]:
    """Losses at the horizon that was not seen, with the law and without, beside what was predicted."""
    lines = []
    for opt in OPTS:
        mine = {arm: _by_seed(last, f"{opt}-{arm}") for arm in ARMS}
        common = sorted(mine["law"].keys() & mine["none"].keys())
        differences = np.array([mine["none"][seed] - mine["law"][seed] for seed in common])
        error = float(differences.std(ddof=1)) / math.sqrt(len(common))
        measured = student_interval(float(differences.mean()), error, len(common) - 1, 0.95)
        told = predicted["predictions"][opt]
        loss = told["none_minus_law"]
        losses = [f"{np.mean([*mine[arm].values()]):.4f} at {told['lr'][arm]:.2g}" for arm in ARMS]
        lines.append([
            opt, *losses, f"{told['loss_with_the_law']:.4f}",
            f"{differences.mean():+.4f} ({measured.low:+.4f} to {measured.high:+.4f})",
            f"{loss['value']:+.4f} ({loss['low']:+.4f} to {loss['high']:+.4f})",
        ])  # fmt: skip
    return [
        "optimizer",
        "loss with the law",
        "loss without",
        "predicted with the law",
        "without - with",
        "predicted",
    ], lines


def _by_seed(rows: Rows, opt: str) -> dict[int, float]:
    return {row["seed"]: row["final_loss"] for row in rows if row["opt"] == opt and is_usable(row)}


def fill(page: str) -> str:
    """The page with the tables of the stored rows."""
    close = close_rows()
    before, fixed, last = map(read_ladder, (BEFORE, FIXED, LAST))
    rows = [*close, *fixed, *last]
    parts = {
        "exponents": as_markdown(table(before, close, fixed)),
        "best": as_markdown(rates(close)),
        "unseen": as_markdown(verdicts(read_json(PREDICTIONS), last)),
        "cost": cost(rows),
    }
    return fill_parts(page, "rates", parts)


def main(folders: Sequence[Path], predicts: bool) -> None:
    for folder, stored in zip(folders, (CLOSE, FIXED, LAST, SOAP, DANA_MUON), strict=False):
        pack(read_ladder(folder), stored)
    if predicts:
        write_json(PREDICTIONS, predict(read_ladder(CLOSE), read_ladder(BEFORE)))
        return
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladders", type=Path, nargs="*")
    parser.add_argument("--predict", action="store_true", help="write the predictions; nothing else")
    chosen = parser.parse_args()
    main(chosen.ladders, chosen.predict)
