"""What the pages recommend, and at which rates, is what the stored runs show."""

from __future__ import annotations

import itertools
import json
import math
from statistics import fmean

import pytest
from bench import first_line

import unknown_horizon
from danalab.optim.rate_search import rates_to_try
from danalab_bench.pages import fill_parts

ROWS = first_line.read_rows()
DONE = first_line.finished(ROWS)


def test_pages_have_the_tables_of_the_stored_runs():
    parts = first_line.parts(ROWS)
    for file in first_line.PAGES:
        page = file.read_text(encoding="utf-8")
        assert "<!-- first: " in page
        assert fill_parts(page, "first", parts) == page, "run: python bench/first_line.py"


@pytest.mark.parametrize("problem", DONE)
@pytest.mark.parametrize(("ours", "rival"), first_line.RIVALS.items())
def test_leads_are_those_of_the_rows_by_a_second_path(problem, ours, rival):
    def losses(opt):
        trials = [row for row in ROWS if row["problem"] == problem and row["opt"] == opt]
        allowed = [row for row in trials if opt != ours or row["lr"] in rates_to_try(opt)]
        best = min((row for row in allowed if row["seed"] == 0), key=lambda row: row["loss"])
        same = [row for row in trials if (row["lr"], row["settings"]) == (best["lr"], best["settings"])]
        return {row["seed"]: row["loss"] for row in same}

    own, theirs = losses(ours), losses(rival)
    assert own.keys() == theirs.keys()
    lead, low, high = first_line.lead(ROWS, problem, ours, rival)
    assert lead == pytest.approx(fmean(theirs[seed] - own[seed] for seed in own))
    assert low < lead < high


def test_the_baselines_have_at_least_the_trials_that_the_page_says():
    for problem in DONE:
        for opt, least in (("torch-muon", 9), ("adamw", 8)):
            trials = [row for row in ROWS if (row["problem"], row["opt"], row["seed"]) == (problem, opt, 0)]
            assert len(trials) >= least
            assert not first_line.is_edge(ROWS, problem, opt) or len(trials) >= least + 2


def test_a_recommendation_is_ahead_on_most_of_the_problems_that_it_is_made_for_and_behind_on_none():
    for what, problems in first_line.GROUPS.items():
        known = [problem for problem in problems if problem in DONE]
        for line in (line for line in first_line.take_table(ROWS)[1] if line[0] == what and line[1] == "`DanaMuon`"):
            ends = [first_line.lead(ROWS, problem, "dana-muon", "torch-muon")[1:] for problem in known]
            assert min(high for _, high in ends) > 0, line
            assert sum(low > 0 for low, _ in ends) > len(known) / 2, line


def test_a_run_of_unknown_length_has_a_line_once_all_its_runs_are_stored(monkeypatch, tmp_path):
    invented = tmp_path / "rows.jsonl"
    monkeypatch.setattr(unknown_horizon, "RESULTS", invented)
    assert not any(line[0] == "a run of unknown length" for line in first_line.take_table(ROWS)[1])
    rows = []
    for i, (name, (_, knows, _, rates)) in enumerate(unknown_horizon.CONTENDERS.items()):
        for seed, lr, steps in itertools.product(unknown_horizon.SEEDS, rates, unknown_horizon.LENGTHS):
            far = abs(math.log(lr / rates[1]))
            losses = {str(length): 2 + 0.1 * i + far for length in ([steps] if knows else unknown_horizon.LENGTHS)}
            rows.append({"name": name, "lr": lr, "seed": seed, "steps": steps, "losses": losses})
    invented.write_text("\n".join(map(json.dumps, rows)))
    line = first_line.take_table(ROWS)[1][-1]
    assert line[:3] == ["a run of unknown length", "`sf-normuon`", "0.016, 0.032, 0.064"]
    assert line[3] == "0.30 to 0.30 nats behind `DanaMuon`, which knows the length"
