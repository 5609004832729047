"""The tables of weight decay in the docs are those of the committed runs."""

from __future__ import annotations

import importlib.util
import math
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("decay_law", ROOT / "bench" / "decay_law.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results(bench):
    return bench.Results(bench.RESULT)


def test_the_tables_of_the_pages_are_those_of_the_result(bench, results):
    pages = [page.read_text() for page in bench.PAGES]
    assert [bench.fill(page, results) for page in pages] == pages
    assert sum(page.count("<!-- decay law: ") for page in pages) == len(bench.tables(results))


def test_adana_by_the_advice_is_nowhere_worse_than_tuned_adamw(bench, results):
    adamw, adana = bench.rows_of(results, "adamw"), bench.rows_of(results, "adana", default=True)
    compared = 0
    for place in adana.keys() & adamw.keys():
        (own,), best = adana[place].values(), min(adamw[place].values(), key=statistics.fmean)
        gaps = [a - b for a, b in zip(own, best, strict=True)]
        assert statistics.fmean(gaps) <= 2 * statistics.stdev(gaps) / math.sqrt(len(gaps)), place
        compared += place[0] in bench.THREE and place[1] in (60, 150, 600, 3000)
    assert compared >= 9


def test_an_interrupted_search_goes_on_and_ends_between_two_rates(bench, tmp_path, monkeypatch):
    cell = bench.Cell("teacher", 20, 64, "adana", "none", 2)
    made = []
    monkeypatch.setattr(bench, "run", lambda cell, lr, seed: made.append((lr, seed)) or (math.log(lr / 0.03)) ** 2)
    file = tmp_path / "rows.jsonl"
    assert bench.Results(file).tune(cell, 2e-3) == pytest.approx(0.032)
    assert {lr for lr, _ in made} >= {0.016, 0.032, 0.064}
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-2]) + "\n")
    made.clear()
    again = bench.Results(file)
    assert again.tune(cell, 2e-3) == pytest.approx(0.032)
    assert made == [(0.032, 1), (0.032, 2)]
    assert again.best(cell)[0] == 0.032


def test_a_run_applies_the_law_that_it_names(bench):
    model = bench.small_problems()["teacher"].make()
    for opt, law, expected in (
        ("adana", "2 lr, 4/t", {"weight_decay": 40 / 60, "decay_bound": 2.0}),
        ("adamw", "0.5 lr, 4/t", {"weight_decay": 0.5}),
        ("adamw", "none", {"weight_decay": 0.0}),
    ):
        optimizer = bench.build_optimizer(opt, model, lr=1e-3)
        bench._set_decay(optimizer, bench.Cell("teacher", 60, 64, opt, law, 4), 1e-3)
        assert {key: optimizer.param_groups[0][key] for key in expected} == expected


def test_the_default_of_the_table_is_what_omega_and_horizon_do(bench):
    model = bench.small_problems()["teacher"].make()
    ours, theirs = (bench.build_optimizer("adana", model, lr=1e-3, **s) for s in ({}, {"omega": 4.0, "horizon": 60}))
    bench._set_decay(ours, bench.Cell("teacher", 60, 64, "adana", bench.DEFAULT, 4), 1e-3)
    for key in ("weight_decay", "wd_ts", "decay_bound"):
        assert ours.param_groups[0][key] == pytest.approx(theirs.param_groups[0][key])
