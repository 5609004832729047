"""Tables made by bench/horizon_rates.py, dana_muon.py and ladder_today.py are those of the stored rows."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from bench import dana_muon, horizon_rates, induction, ladder_today, muon_parts, rare_tokens

from danalab.files import read_json
from danalab.ladder.analysis import analyse
from danalab.ladder.rows import read_ladder
from danalab.optim.catalogue import OPTIMIZERS
from danalab.scaling.learning_rate import lr_law
from danalab_bench.pages import POINT, fill_parts, joined, page_table


def test_the_horizon_page_shows_the_stored_rows_of_the_closer_look():
    pages = [page.read_text(encoding="utf-8") for page in horizon_rates.PAGES]
    assert sorted(re.findall(r"<!-- rates: (\w+) -->", pages[1])) == ["best", "cost", "exponents", "unseen"]
    assert "<!-- rates: exponents -->" in pages[0]
    assert [horizon_rates.fill(page) for page in pages] == pages, "run: python bench/horizon_rates.py"


def test_the_catalogue_has_the_exponents_of_the_sizes_together():
    laws = horizon_rates.exponents(
        horizon_rates.with_other_sizes(horizon_rates.close_rows(), read_ladder(horizon_rates.BEFORE))
    )
    assert set(laws) == {name for name in OPTIMIZERS if OPTIMIZERS.get(name).horizon}
    for opt, law in laws.items():
        known = law.intervals["f"]
        assert OPTIMIZERS.get(opt).horizon == pytest.approx((law.exponents["f"], known.low, known.high), abs=0.0051)


def test_predictions_follow_from_the_rows_that_they_name_none_of_them_at_the_unseen_horizon():
    told = read_json(horizon_rates.PREDICTIONS)
    rows = {row["name"]: row for row in read_ladder(horizon_rates.CLOSE)}
    again = horizon_rates.predict([rows[name] for name in told["made_from"]], read_ladder(horizon_rates.BEFORE))
    for opt in horizon_rates.OPTS:
        assert told["predictions"][opt]["lr"] == pytest.approx(again["predictions"][opt]["lr"])
        assert told["predictions"][opt]["loss_with_the_law"] == pytest.approx(
            again["predictions"][opt]["loss_with_the_law"], rel=1e-4
        )


def test_the_runs_at_the_unseen_horizon_have_the_rates_that_were_predicted():
    told = read_json(horizon_rates.PREDICTIONS)["predictions"]
    for row in read_ladder(horizon_rates.LAST):
        opt, _, arm = row["opt"].rpartition("-")
        assert row["lr"] == pytest.approx(told[opt]["lr"][arm], rel=2e-3)


def test_the_page_of_dana_muon_shows_the_stored_rows_of_dana_muons_forms():
    rows = read_ladder(dana_muon.RESULTS)
    for page in (page.read_text(encoding="utf-8") for page in dana_muon.PAGES):
        assert dana_muon.fill(page, rows) == page, "run: python bench/dana_muon.py"
    assert len(page_table("dana-muon.md", "dana-muon: table")) == 9


def test_the_page_of_dana_muon_shows_the_stored_rows_of_dana_muons_parts():
    rows = read_ladder(muon_parts.RESULTS)
    for page, parts in zip((page.read_text(encoding="utf-8") for page in dana_muon.PAGES), (1, 2), strict=True):
        assert page.count("<!-- muon-parts: ") == parts
        assert muon_parts.fill(page, rows) == page, "run: python bench/muon_parts.py"


@pytest.mark.slow
def test_the_ladder_page_says_what_the_laws_are_without_the_size_where_some_copy():
    rows = [row for row in read_ladder(ladder_today.RESULTS) if row["params"] != 262_976]
    page = " ".join(ladder_today.PAGES[1].read_text(encoding="utf-8").split())
    gains = analyse(rows, convention="model").gains  # tokens
    for opt, name in ladder_today.NAMES.items():
        if opt in gains:
            low, high = (100 * end for end in (gains[opt].interval.low, gains[opt].interval.high))
            name = name.replace("AdamW, decaying weight decay", "AdamW with decaying decay")
            assert f"{name} {100 * gains[opt].mean:.0f}% ({low:.0f} to {high:.0f})" in page


@pytest.mark.parametrize(("script", "tag"), [(rare_tokens, "rare"), (induction, "copying")])
def test_pages_show_the_stored_losses_of_kinds_of_tokens(script, tag):
    page = script.PAGE.read_text(encoding="utf-8")
    rows = [json.loads(line) for line in script.RESULTS.read_text(encoding="utf-8").splitlines()]
    assert f"<!-- {tag}: table -->" in page
    assert script.fill(page, rows) == page, f"run: python {script.__file__}"


def test_tokens_are_judged_in_bins_of_their_frequency():
    bins = rare_tokens.bins_of(torch.tensor([0.5, 1 / 1000, 0.0]))
    assert bins.tolist() == [0, 1, 4]
    logits = torch.tensor([[[0.0, 1.0, 2.0], [2.0, 0.0, 0.0]]])
    found = rare_tokens.measures(lambda _: logits, torch.zeros(1, 2).long(), torch.tensor([[2, 0]]), bins)
    p = logits[0].softmax(1)
    assert found["loss"][4] == pytest.approx(-float(p[0, 2].log()), rel=1e-6)
    assert found["ratio"][4] == pytest.approx(float(p[:, 2].sum()), rel=1e-6)
    assert math.isnan(found["loss"][2])
    assert math.isinf(found["ratio"][1])


def test_pages_show_the_stored_ladder():
    parts = ladder_today.parts()
    for file in ladder_today.PAGES:
        page = file.read_text(encoding="utf-8")
        assert "<!-- today: " in page
        assert fill_parts(page, "today", parts) == page, "run: python bench/ladder_today.py"


def test_dana_muons_best_rates_with_one_rate_for_all_follow_half_of_the_law_that_the_catalogue_gives_it():
    best: dict[int, dict] = {}
    for row in read_ladder(ladder_today.RESULTS):
        if row["opt"] == "dana-muon" and row["seed"] == 0 and row["params"] > 50_000:
            size = row["params"]
            best[size] = min(best.get(size, row), row, key=lambda row: row["final_loss"])
    assert len(best) == 6
    law, source = lr_law("enoki", "dana-muon")
    assert "times 2 for dana-muon" in source
    assert all(0.35 < row["lr"] / law(row["non_emb_params"]) < 0.65 for row in best.values())


def test_the_ladder_page_has_the_savings_of_the_ladder_before():
    rows = (ladder_today.RESULTS.with_name("ladder_cpu_v1") / "table-saved.md").read_text(encoding="utf-8").splitlines()
    stored: dict[str, list[float]] = {}
    for cells in ([cell.strip() for cell in row.split("|")] for row in rows if row.startswith(("| a", "| d", "| m"))):
        stored.setdefault(cells[2], []).extend(float(x) for x in re.findall(r"[+-]\d+\.\d", cells[3] + cells[4]))
    page = ladder_today.PAGES[1].read_text(encoding="utf-8").partition("## The ladder before")[2].partition("\n### ")[0]
    for size, begin in {"262,976": "263 k", "all, by the laws": "by the fitted laws"}.items():
        (shown,) = re.findall(rf"^\| {begin} \| (.*) \|$", page, re.MULTILINE)
        numbers = [float(number) for number in re.findall(r"[+-]\d+", shown)]
        assert numbers == pytest.approx(stored[size], abs=0.51)


def test_a_token_is_to_copy_where_it_followed_the_same_two_before():
    text = torch.tensor([[7, 1, 2, 3, 1, 2, 3, 1, 2, 9, 1, 2, 3]])
    mask = induction.to_copy(text[:, :-1], text[:, 1:])
    assert text[:, 1:][mask].tolist() == [3, 1, 2]  # the last 3 is none: 9 followed 1 2 the last time
    assert mask.nonzero()[:, 1].tolist() == [5, 6, 7]


def test_a_model_that_copies_is_told_from_one_that_does_not():
    inputs = torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2]])
    targets = torch.tensor([[2, 3, 1, 2, 3, 1, 2, 3]])
    mask = induction.to_copy(inputs, targets)

    class Copies:
        def token_losses(self, tokens, wanted):
            return torch.where(mask, 0.1, 3.0)

    found = induction.losses(Copies(), inputs, targets, mask)
    assert found == pytest.approx({"loss": (0.1 * 4 + 3 * 4) / 8, "to_copy": 0.1, "rest": 3.0})


def test_runs_of_one_name_in_two_ladders_are_both_joined_under_names_that_tell_their_settings():
    def ladder(betas, loss):
        points = [
            {"step": 1, "tokens": 8, "flops": 9.0, "time": 1.0, "val/loss": loss, "lr": 0.1},
            {"step": 2, "lr": 0.1},
        ]
        settings = {"optimizer_settings": {"betas": betas}}
        return [{"name": "adamw-lrx1-s0", "final_loss": loss, "points": points, "settings": settings}]

    first, second = ladder([0.9, 0.999], 3.0), ladder([0.9, 0.95], 2.9)
    rows = joined([first, second])
    assert [row["name"] for row in rows] == ["adamw-lrx1-s0", "adamw-lrx1-betas[0.9,0.95]-s0"]
    assert joined([rows, second]) == rows
    assert [row["points"] for row in rows] == [[dict.fromkeys(POINT, 0) | own] for own in (
        {"step": 1, "tokens": 8, "flops": 9.0, "time": 1.0, "val/loss": loss} for loss in (3.0, 2.9)
    )]  # fmt: skip


def test_the_ladder_says_where_the_baseline_has_torchs_betas():
    rows = [row for row in read_ladder(ladder_today.RESULTS) if row["opt"] == "adamw"]
    beside = {row["params"] for row in rows if row["optimizer_settings"]["betas"] != [0.9, 0.999]}
    losses = page_table("../notes/ladder.md", "today: losses")
    (line,) = [line for line in losses if line[0] == "AdamW"]
    sizes = sorted({row["params"] for row in rows})
    assert [("torch's betas" in cell) for cell in line[1:]] == [size not in beside for size in sizes]
