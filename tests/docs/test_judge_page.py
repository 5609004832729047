"""The table of the judge's calibration is that of the stored result, and the result keeps its promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from bench import ablation
from bench.judge_baselines import saved, table
from bench.judge_calibration import CASES, JUDGEMENTS, invented_row

from danalab.judge.ledger import STORED as BASELINES
from danalab.judge.ledger import processor, stored_runs
from danalab.judge.tracks import TRACKS, get_track
from danalab.optim import optimizer_spec
from danalab.showcase.trials import train, usual_lr
from danalab_bench.pages import benchmark, fill_parts

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / "bench" / "results" / "judge_calibration.json").read_text())


def test_the_page_has_the_stored_numbers():
    page = (ROOT / "notes" / "judge.md").read_text()
    wrong = STORED["equal"]["better"] + STORED["equal"]["worse"]
    for name, row in STORED["invented"].items():
        assert invented_row(name, row) in page
    assert f"| | {wrong:.1%} | | |" in page
    for case in ("one_noise", "two_noises"):
        row = STORED[case]
        assert (
            f"| {row['worse']:.0%} | {row['better']:.0%} | {row['median_pairs']:.0f} | {STORED['t_test_pairs'][case]} |"
            in page
        )


def test_the_page_has_the_best_stored_answer_on_all_tracks():
    page = (ROOT / "docs" / "judge.md").read_text()
    assert "<!-- judge: saved -->" in page
    assert fill_parts(page, "judge", {"saved": saved()}) == page, "run: python bench/judge_baselines.py --tracks"


def test_the_page_has_the_stored_ablation_whose_parts_share_one_alpha():
    page = (ROOT / "docs" / "judge.md").read_text()
    assert fill_parts(page, "ablation", {"table": ablation.table()}) == page, "run: python bench/ablation.py"
    rows = benchmark("ablation")
    assert sum(row["alpha"] for row in rows) <= 0.05
    assert {row["baseline"] for row in rows} == {row["contender"].partition(" without")[0] for row in rows}
    assert all((row["low"] > 0) == (row["answer"] == "helps") for row in rows)


def test_judgements_from_scratch_are_those_of_the_page_and_rarely_decided():
    scratch = STORED["from_scratch"]
    assert scratch["share_decided"] <= 0.05
    assert scratch["runs"] == 8000
    said = f"{scratch['decided']} of 200 ({scratch['share_decided']:.1%}) were decided"
    assert said in " ".join((ROOT / "notes" / "judge.md").read_text().split())


def test_equal_sides_are_rarely_decided_and_one_noise_floor_mostly_is():
    assert STORED["equal"]["better"] + STORED["equal"]["worse"] <= 0.05
    assert STORED["one_noise"]["worse"] >= 0.8


def test_wrong_answers_are_rare_whatever_the_distribution_within_the_bound():
    """Shares are counted from the rows, one per judgement."""
    invented = STORED["invented"]
    assert invented.keys() == CASES.keys()
    for name, case in CASES.items():
        rows = invented[name]["rows"].split()
        assert len(rows) == JUDGEMENTS == 200
        wrong = sum(row[0] in ("w" if case.effect else "bw") for row in rows) / len(rows)
        assert wrong == invented[name]["wrong"]
        assert wrong <= 0.05 or not case.within
    assert invented["10% of seeds stuck by 0.2"]["wrong_normal_alone"] > 0.3, "why there is a bound"
    assert invented["normal, better by 0.09"]["right"] >= 0.8


@pytest.mark.parametrize("name", CASES)
def test_the_first_of_the_stored_judgements_are_made_again(name):
    index = list(CASES).index(name)
    made = [CASES[name].judgement([index, i])[:2] for i in range(5)]
    stored = [STORED["invented"][name][key].split()[:5] for key in ("rows", "rows_normal_alone")]
    assert [list(rows) for rows in zip(*made, strict=True)] == stored


def test_the_table_of_the_tracks_is_that_of_the_stored_baselines():
    assert (
        f"<!-- tracks -->\n{table(json.loads(BASELINES.read_text()))}\n<!-- end" in (ROOT / "docs/judge.md").read_text()
    )


@pytest.mark.parametrize("name", TRACKS)
def test_stored_baselines_have_a_search_and_paired_seeds(name):
    for here in json.loads(BASELINES.read_text()).values():
        assert {"cpu", "isa", "torch_capability", "torch"} <= here["machine"].keys()
        if name in here["tracks"]:
            stored = here["tracks"][name]
            seeds = [run["seed"] for run in stored["runs"] if run["lr"] == stored["lr"]]
            assert sorted(seeds) == list(range(len(seeds)))
            assert len(seeds) >= 4
            assert sum(run["seed"] == 0 for run in stored["runs"]) == 5
            assert stored["steps"] == get_track(name).steps


@pytest.mark.slow
@pytest.mark.skipif(processor() not in json.loads(BASELINES.read_text()), reason="another type of processor")
@pytest.mark.parametrize("name", ["char", "synthetic", "stdlib", "images"])
def test_a_stored_run_is_reproduced_to_the_last_bit_on_its_type_of_processor(name):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        track, adamw = get_track(name), optimizer_spec("adamw")
        rate = usual_lr(adamw, track)
        stored = stored_runs(name, track.steps)[f"{rate:.6g}", 0]
        made = train(track, adamw, rate, 0, {})
    finally:
        torch.set_num_threads(before)
    assert made.losses == stored.losses
