"""The numbers that pages publish, derived again from the stored rows by NumPy alone: nothing of danalab is imported.

Curves are smoothed by polynomials here, laws fitted by reweighted least squares on a grid of E; so the two ways differ
in all but the rows, and agree within the tolerances below.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
STUDENT = {1: 12.706, 2: 4.303, 4: 2.776}
"""Degrees of freedom -> 97.5% quantile of Student's t."""


@cache
def rows(name: str) -> list[dict]:
    with gzip.open(RESULTS / name / "ladder.jsonl.gz", "rt") as lines:
        return [row for row in map(json.loads, lines) if row["final_loss"] is not None]


@cache
def best(name: str) -> dict[tuple, list[dict]]:
    """(optimizer, parameters, tokens, batch) -> the runs, one per seed, of the least loss among those of most seeds."""
    cells: dict[tuple, dict[str, dict[int, dict]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows(name):
        own = {
            key: row["settings"].get(key) for key in ("omega", "weight_decay", "kappa", "delta", "optimizer_settings")
        }
        trial = json.dumps([row["lr"], own], sort_keys=True)
        cells[row["opt"], row["total_params"], row["tokens"], row.get("batch")][trial][row["seed"]] = row
    found = {}
    for key, trials in cells.items():
        most = max(map(len, trials.values()))
        full = [runs for runs in trials.values() if len(runs) == most]
        runs = min(full, key=lambda runs: np.mean([row["final_loss"] for row in runs.values()]))
        found[key] = [runs[seed] for seed in sorted(runs)]
    return found


def at(name: str, opt: str) -> dict[int, list[dict]]:
    """Parameters -> the best runs of an optimizer at its longest training."""
    found = {}
    for (own, params, tokens, _), runs in sorted(best(name).items()):
        if own == opt and (params not in found or tokens >= found[params][0]["tokens"]):
            found[params] = runs
    return found


def losses(runs: list[dict]) -> np.ndarray:
    return np.array([row["final_loss"] for row in runs])


def compute(row: dict) -> float:
    """The model's FLOPs and those of Newton-Schulz: five steps of 2 r^2 (2 c + r) for a matrix [r, c], r <= c."""
    d, run = row["settings"]["d_model"], row["settings"]
    matrices = [(d, d)] * 4 + [(d, run["mlp_dim"])] * 2  # attention in and out, the gate's two
    own = sum(5 * 2 * r**2 * (2 * c + r) for r, c in matrices) * run["n_layers"] * run["iterations"]
    return row["flops"] + (own if row["opt"] in ("muon", "dana-muon") else 0)


def paired(base: list[dict], other: list[dict]) -> tuple[float, float]:
    """Student's interval of the difference of log losses, in nats at their mean."""
    logs = np.log(losses(base)) - np.log(losses(other))
    scale = np.exp(np.mean(np.log([*losses(base), *losses(other)])))
    half = STUDENT[len(logs) - 1] * logs.std(ddof=1) / len(logs) ** 0.5
    return scale * (logs.mean() - half), scale * (logs.mean() + half)


def saved(base: list[dict], other: list[dict], of) -> float:
    """Share of the baseline's compute at the crossing of smoothed mean curves, which end at the mean final losses."""
    sides = []
    for runs in (base, other):
        points = [[p for p in row["points"] if p.get("val/loss") and p.get("tokens")] for row in runs]
        x = np.array([p["tokens"] / runs[0]["tokens"] for p in points[0]])
        y = np.mean([[p["val/loss"] for p in own] for own in points], axis=0)
        near = [np.abs(np.log(x / here)) <= 0.1 for here in x]
        lines = [np.polyfit(np.log(x[n]), y[n], min(1, n.sum() - 1)) for n in near]
        smooth = [np.polyval(line, np.log(here)) for line, here in zip(lines, x, strict=True)]
        sides.append((x, np.array(smooth), of(runs[0])))
    (x, y, all_base), (u, v, all_other) = sides
    if v[-1] <= y[-1]:
        i = int(np.argmax(v <= y[-1]))
        share = (v[i - 1] - y[-1]) / (v[i - 1] - v[i])
        return 1 - u[i - 1] ** (1 - share) * u[i] ** share * all_other / all_base
    i = int(np.argmax(y <= v[-1]))
    share = (y[i - 1] - v[-1]) / (y[i - 1] - y[i])
    return 1 - all_other / (x[i - 1] ** (1 - share) * x[i] ** share * all_base)


@cache
def laws(without: str) -> dict[str, float]:
    """Optimizer -> compute (or `without` own products: tokens) saved by laws E + A C^-alpha with one E."""
    of = (lambda row: row["flops"]) if without else compute
    curves = {}
    for opt in {key[0] for key in best("ladder_cpu")}:
        runs = [row for own in at("ladder_cpu", opt).values() for row in own]
        curves[opt] = np.log([of(row) for row in runs]), losses(runs)

    def fit(E: float) -> tuple[float, dict[str, tuple[float, float]]]:
        total, found = 0.0, {}
        for opt, (x, y) in curves.items():
            scale, weight = (y - E) / y, np.ones_like(y)  # an error of log(y - E), as one of log y
            slope, level, left = 0.0, 0.0, np.zeros_like(y)
            for _ in range(30):
                w = np.sqrt(weight) * scale
                slope, level = np.polyfit(x, np.log(y - E), 1, w=w)
                left = np.log(E + np.exp(slope * x + level)) - np.log(y)
                weight = 1 / np.maximum(np.abs(left), 1e-3)
            total += float(np.sum(np.where(np.abs(left) < 1e-3, left**2, 2e-3 * np.abs(left) - 1e-6)))
            found[opt] = -slope, level
        return total, found

    least = min(y.min() for _, y in curves.values())
    floors = np.linspace(0.01, 0.95, 40) * least
    fits = [fit(E) for E in floors]
    i = min(range(len(fits)), key=lambda i: fits[i][0])
    E, law = floors[i], fits[i][1]
    means = {}
    for opt, (alpha, level) in law.items():
        (base_alpha, base_level), spans = law["adamw"], []
        for name in (opt, "adamw"):
            x = curves[name][0]
            spans.append([E + np.exp(law[name][1] - law[name][0] * end) for end in (x.max(), x.min())])
        y = np.log(np.linspace(max(s[0] for s in spans), min(s[1] for s in spans), 25) - E)
        means[opt] = 1 - np.exp(np.mean((level - y) / alpha - (base_level - y) / base_alpha))
    return means


def cells(name: str) -> dict[str, list[str]]:
    """First cell -> the other cells of a table of a page, wherever it is."""
    for file in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("notes/**/*.md"))):
        _, found, text = file.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
        if found:
            lines = [line.strip("|").split("|") for line in text.partition("<!-- end -->")[0].splitlines()]
            return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}
    raise AssertionError(name)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", text)]


NAMES = {"DanaMuon": "dana-muon", "ADana": "adana", "SOAP": "soap", "Muon": "muon", "Dana-Star-MK4": "dana-star-mk4"}


@pytest.mark.parametrize(("table", "own"), [("today: saved", True), ("today: tokens", False)])
def test_savings_at_each_size_and_by_laws(table, own):
    page, base = cells(table), at("ladder_cpu", "adamw")
    by_law = laws("" if own else "tokens")
    for name, opt in NAMES.items():
        if own and opt == "soap":  # its changes of basis are another formula
            continue
        mine, shown = at("ladder_cpu", opt), page[name]
        for cell, (params, runs) in zip(shown, sorted(base.items()), strict=False):
            assert bool(cell) == (params in mine)
            if cell:
                again = 100 * saved(runs, mine[params], compute if own else lambda row: row["flops"])
                assert again == pytest.approx(numbers(cell)[0], abs=1.5), (name, params)
        assert 100 * by_law[opt] == pytest.approx(numbers(shown[-1])[0], abs=2), name


def test_the_readme_has_the_savings_by_the_laws():
    shown = {int(number) for number in re.findall(r"(\d+)%", (ROOT / "README.md").read_text(encoding="utf-8"))}
    for opt in ("adana", "dana-muon"):
        assert min(abs(100 * laws(which)[opt] - number) for number in shown for which in ("", "tokens")) < 1.5, opt


CLAIMS = {
    "the same, longer": ("nanogpt_long_cpu", "adamw", "muon"),
    "Muon beats AdamW on a small GPT [0.25]": ("nanogpt_cpu", "adamw", "muon"),
    "ADana beats AdamW on a small GPT [0.05]": ("nanogpt_cpu", "adamw", "adana"),
    "momentum cooldown lowers ADana's loss [0.02]": ("horizon_cpu", "adana", "adana-cooldown"),
    "DanaMuon, with rates by kind, beats D-Muon on a small GPT [0.03]": ("nanogpt_cpu", "d-muon", "dana-muon"),
    "the same, wider": ("nanogpt_wide_cpu", "adamw", "adana"),
    "log-time momentum improves Muon on a small GPT (D-Muon) [0.03]": ("nanogpt_long_cpu", "d-muon", "manau-log"),
    "ADana beats AdamW on nanoGPT's Shakespeare [0.05]": ("nanogpt_shakespeare_cpu", "adamw", "adana"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_leads_of_the_claims(claim):
    name, first, second = CLAIMS[claim]
    shown = [numbers(row[3])[:2] for text, row in claims() if text == claim]
    sizes = [at(name, opt) for opt in (first, second)]
    params = max(sizes[0].keys() & sizes[1].keys(), key=lambda params: sizes[0][params][0]["tokens"] / params)
    again = paired(*(own[params] for own in sizes))
    assert any(again == pytest.approx(each, abs=0.006) for each in shown), (again, shown)


def claims() -> list[tuple[str, list[str]]]:
    text = (ROOT / "notes" / "claims.md").read_text(encoding="utf-8").partition("<!-- claims: all -->\n")[2]
    lines = [line.strip("|").split("|") for line in text.partition("<!-- end -->")[0].splitlines()[2:]]
    return [(line[0].strip(), [cell.strip() for cell in line]) for line in lines]


def test_the_half_life_at_the_smallest_batch():
    (row,) = [row for text, row in claims() if "half-life" in text]
    cell = {key[0]: runs for key, runs in best("batch_cpu").items() if key[3] == 2}
    assert paired(cell["adamw"], cell["adamw-half-life"]) == pytest.approx(numbers(row[3])[:2], abs=0.006)


def test_leads_on_images():
    lines = (RESULTS / "images_cpu.jsonl").read_text(encoding="utf-8").splitlines()
    own = {row["optimizer"]: np.array(row["losses"]) for row in map(json.loads, lines)}
    pairs = {"ADana beats AdamW": ("adamw", "adana"), "log-time momentum improves D-Muon": ("d-muon", "dana-muon")}
    for claim, pair in pairs.items():
        lead = own[pair[0]] - own[pair[1]]
        half = STUDENT[len(lead) - 1] * lead.std(ddof=1) / len(lead) ** 0.5
        (row,) = [row for text, row in claims() if text.startswith(f"{claim} on images")]
        assert (lead.mean() - half, lead.mean() + half) == pytest.approx(numbers(row[3])[:2], abs=0.0006)


@pytest.mark.parametrize(
    ("start", "control", "folder"),
    [
        ("ADana beats AdamW of long constant averages", "nanogpt_adamw_long_cpu", "nanogpt_cpu"),
        ("the same, on Enoki", "adamw_long_cpu", "ladder_cpu"),
    ],
)
def test_the_lead_over_the_best_adamw_of_long_constant_averages(start, control, folder):
    runs = min(best(control).values(), key=lambda runs: losses(runs).mean())
    (row,) = [row for text, row in claims() if text.startswith(start)]
    assert paired(runs, at(folder, "adana")[runs[0]["total_params"]]) == pytest.approx(numbers(row[3])[:2], abs=0.006)
