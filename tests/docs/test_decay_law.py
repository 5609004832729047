"""The tables of weight decay in the docs are those of the committed runs."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path

import pytest
from bench.decay_law import BATCH, PAGES, THREE, Results, fill, rows_of, tables

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results():
    return Results(ROOT / "bench" / "results" / "decay_law_cpu.jsonl")


def test_the_tables_of_the_pages_are_those_of_the_result(results):
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    assert [fill(page, results) for page in pages] == pages, "run: python bench/decay_law.py --docs"
    shown = re.findall("<!-- decay law: (.*?) -->", "".join(pages))
    assert sorted(shown) == sorted(tables(results))


@pytest.mark.parametrize("opt", ["adana", "dana-mk4", "dana-star", "dana-star-mk4"])
def test_the_family_by_the_advice_is_nowhere_worse_than_tuned_adamw(results, opt):
    adamw, family = rows_of(results, "adamw"), rows_of(results, opt, default=True)
    family = {p: losses for p, losses in family.items() if p[2] == BATCH[p[0]]}
    places = {(problem, steps) for problem, steps, _ in family.keys() & adamw.keys()}
    assert places >= {(problem, steps) for problem in THREE for steps in (60, 150, 600, 3000)}
    for place in family.keys() & adamw.keys():
        (own,), best = family[place].values(), min(adamw[place].values(), key=statistics.fmean)
        gaps = [a - b for a, b in zip(own, best, strict=True)]
        assert statistics.fmean(gaps) <= 2 * statistics.stdev(gaps) / math.sqrt(len(gaps)), place
