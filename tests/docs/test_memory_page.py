"""docs/memory.md shows what the stored runs say; they are younger than the predictions, and hold the same ones."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from statistics import fmean

import pytest
from bench import memory, memory_nanogpt, memory_runs

from danalab_bench.pages import benchmark, fill_parts

ROWS, TRACK_ROWS = memory.read_rows(), memory.read_rows(track=memory.TRACK)
TOLD = json.loads(memory.PREDICTIONS.read_text(encoding="utf-8"))
FOUND = memory.Found(ROWS)


def test_the_page_has_the_tables_of_the_stored_runs():
    page = memory.PAGE.read_text(encoding="utf-8")
    assert "<!-- memory: leads -->" in page
    assert fill_parts(page, "memory", memory.parts(ROWS, TRACK_ROWS)) == page, "run: python bench/memory.py"
    assert memory.FIGURE.is_file()


def test_every_run_is_younger_than_the_predictions_and_held_them():
    made, told = datetime.fromisoformat(TOLD["made"]), hashlib.sha256(memory.PREDICTIONS.read_bytes()).hexdigest()
    assert all(datetime.fromisoformat(row["at"]) > made for row in ROWS)
    assert {row["predictions"] for row in ROWS} == {told}
    assert all(len(row["commit"]) == 40 and row["commit"] != TOLD["commit"] for row in ROWS)


def test_the_second_places_runs_are_younger_than_their_predictions_and_had_the_plan_of_then():
    told = benchmark(memory.NAME)
    made = datetime.fromisoformat(told["made"])
    assert TRACK_ROWS
    assert all(datetime.fromisoformat(row["at"]).timestamp() - row["seconds"] > made.timestamp() for row in TRACK_ROWS)
    assert {row["predictions"] for row in TRACK_ROWS} == {memory_nanogpt.digest()}
    assert all(len(row["commit"]) == 40 and row["commit"] != told["commit"] for row in TRACK_ROWS)
    assert told["plan"] == memory_nanogpt.plan_digest(), "what was added since is in ADDED"
    assert told["rows"] == memory_nanogpt.predict()["rows"], "they follow from the first place's predictions"
    assert told["from"] == hashlib.sha256(memory.PREDICTIONS.read_bytes()).hexdigest()


def test_the_stored_runs_are_those_of_the_command(monkeypatch):
    """`python bench/memory_runs.py --run` finds a row for each run that it would make."""
    monkeypatch.setattr(memory_runs, "run", lambda *key: pytest.fail(f"no row: {key}"))
    assert list(memory_runs.stages(memory_runs.Runs(memory_runs.ROWS)))[-1].startswith("5 seeds of")


def test_follow_is_the_path_that_the_predictions_name():
    for kind, steps, text in (("sign", 300, "follow(8, 3, -0.5, 1)"), ("root", 1200, "follow(8, 1.2, -0.5, 1)")):
        row = next(r for r in TOLD["rows"] if (r["map"], r["batch"], r["steps"]) == (kind, 1, steps))
        share = float(text.split(",")[1]) / steps
        assert row["which"] == f"follow {share:g} T s^-0.5"
        opt = {"sign": "muon", "root": "root"}[kind]
        assert memory.settings_of(opt, "follow", steps)["age"] == text


@pytest.mark.parametrize(("opt", "steps"), list(FOUND.losses))
def test_leads_and_ages_are_those_of_the_rows_by_a_second_path(opt, steps):
    own = [row for row in ROWS if (row["opt"], row["steps"]) == (opt, steps) and row["seed"] > 0]
    arms = {row["arm"] for row in own}
    losses = {arm: {row["seed"]: row["loss"] for row in own if row["arm"] == arm} for arm in arms}
    assert all(len({row["lr"] for row in own if row["arm"] == arm}) == 1 for arm in arms)
    common = set.intersection(*(set(each) for each in losses.values()))
    first, second = sorted(arms)[:2]
    mean, known = FOUND.lead(opt, steps, first, second)
    assert mean == pytest.approx(fmean(losses[second][seed] - losses[first][seed] for seed in common))
    assert known.low < mean < known.high
    if opt in ("muon", "adana", "root"):
        ages = {float(arm.split()[1]) for arm in arms if arm.startswith("constant")}
        assert min(ages) <= 2 ** FOUND.age(opt, steps)[0] <= max(ages)
        means = {arm: fmean(losses[arm][seed] for seed in common) for arm in arms if arm.startswith("constant")}
        assert means[FOUND.best_constant(opt, steps)] == min(means.values())
