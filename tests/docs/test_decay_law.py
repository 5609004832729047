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


@pytest.mark.parametrize("opt", ["adana", "dana-mk4", "dana-star", "dana-star-mk4"])
def test_the_family_by_the_advice_is_nowhere_worse_than_tuned_adamw(bench, results, opt):
    adamw, family = bench.rows_of(results, "adamw"), bench.rows_of(results, opt, default=True)
    family = {p: losses for p, losses in family.items() if p[2] == bench.small_problems()[p[0]].batch}
    places = {(problem, steps) for problem, steps, _ in family.keys() & adamw.keys()}
    lengths = (60, 150, 600, 3000) if opt == "adana" else (60, 150, 600)
    assert places >= {(problem, steps) for problem in bench.THREE for steps in lengths}
    for place in family.keys() & adamw.keys():
        (own,), best = family[place].values(), min(adamw[place].values(), key=statistics.fmean)
        gaps = [a - b for a, b in zip(own, best, strict=True)]
        assert statistics.fmean(gaps) <= 2 * statistics.stdev(gaps) / math.sqrt(len(gaps)), place
