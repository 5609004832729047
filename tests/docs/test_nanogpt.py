"""bench/nanogpt.py: its tables are those of the stored rows."""

from __future__ import annotations

import pytest
from bench.nanogpt import CONTROLS, PAGES, control_rows, fill, leads, stored, table, tuned_runs


def test_the_page_shows_the_stored_rows():
    for file, parts in zip(PAGES, (3, 1), strict=True):
        page = file.read_text(encoding="utf-8")
        assert page.count("<!-- nanogpt: ") == parts
        assert fill(page) == page, "run: python bench/nanogpt.py"


@pytest.mark.parametrize(("part", "optimizers"), [("nanogpt", 7), ("nanogpt_wide", 7), ("nanogpt_shakespeare", 5)])
def test_every_optimizer_has_as_many_trials_and_three_seeds(part, optimizers):
    lines = table(stored(part))[1]
    assert len(lines) == optimizers
    assert len({line[3] for line in lines}) == 1
    assert all(len(each.runs) == 3 and each.bracket == "" for each in tuned_runs(stored(part)))


@pytest.mark.parametrize("part", ["nanogpt", "nanogpt_wide"])
def test_the_small_gpt_has_nanogpts_recipe(part):
    settings = [row["settings"] for row in stored(part)]
    assert {(own["warmup_steps"], own.get("div_factor", 100), own["final_div_factor"])
            for own in settings} == {(100, 100, 0.1)}  # fmt: skip


def test_adana_meets_adamw_of_long_constant_averages_with_three_seeds():
    for control in CONTROLS:
        long = [each for each in tuned_runs(stored(control)) if each.opt not in ("adamw", "adana")]
        assert {tuple(each.runs[0]["optimizer_settings"]["betas"]) for each in long} == {
            (beta1, beta2) for beta1 in (0.95, 0.98) for beta2 in (0.99, 0.999)
        }
        assert all(len(each.runs) == 3 and len(each.rates) >= 3 and each.bracket == "" for each in long)
        assert all(leads(control_rows(control), each.opt)["adana"].n_seeds == 3 for each in long)
