"""The report of a ladder: the answer first, figures in two themes, tables, one CSV; and comparisons of single runs."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.experiments import report
from danalab.experiments.analysis import analyse
from danalab.experiments.comparison import compare, comparison_table, limits, loss_figure, read_curve
from danalab.experiments.figures import FIGURES
from danalab.experiments.report import answer, remarks, saved_table, write_report
from danalab.experiments.rows import pack, read_ladder
from experiments.planted import plant
from experiments.planted_horizons import plant_horizons

LADDER = Path(__file__).parents[2] / "bench" / "results" / "ladder_cpu"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return analyse(read_ladder(plant(tmp_path_factory.mktemp("ladder"))), n_bootstrap=20)


def test_the_answer_is_the_first_line_and_true(found):
    (line,) = answer(found)
    assert line.startswith("adana saves +40% of adamw's compute at equal loss (mean of 4 sizes")
    assert "by the fitted laws +4" in line
    assert any("Settings tried at each size: adamw 3; adana 3." in sentence for sentence in remarks(found))


def test_what_was_not_reached_is_no_saving_and_optimizers_share_a_note(tmp_path):
    rows = read_ladder(plant(tmp_path, saving=-0.5))
    found = analyse([row for row in rows if row["params"] < 100_000], n_bootstrap=0)
    assert answer(found)[0].startswith("adana did not reach adamw's final loss at 2 sizes")
    (note,) = [each for each in found.notes if "trials at 3 sizes" in each]
    assert note.startswith("learning-rate law of adamw, adana: ")


def test_a_report_has_the_answer_figures_in_two_themes_and_one_table_of_runs(found, tmp_path):
    page = write_report(found, tmp_path / "report")
    text = page.read_text()
    assert text.splitlines()[0] == answer(found)[0]
    for name in ("headline", "loss-curves", "lr-law", "lr-sensitivity"):
        for ending in (".png", ".svg", "-dark.png", "-dark.svg"):
            assert (page.parent / f"{name}{ending}").stat().st_size > 1000
        assert f"{name}-dark.svg" in text
    with open(page.parent / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.rows)
    assert float(rows[0]["final_loss"]) == found.rows[0]["final_loss"]
    told = json.loads((page.parent / "analysis.json").read_text())
    assert told["gains"]["adana"]["mean"] == pytest.approx(0.4, abs=0.02)


def test_every_size_and_the_baseline_itself_have_a_line(found):
    headings, lines = saved_table(found)
    assert [line[0] for line in lines] == ["adana"] * 5 + ["adamw itself"] * 4
    assert all(len(line) == len(headings) for line in lines)


def test_horizons_and_kappa_have_figures():
    found = analyse(plant_horizons(), n_bootstrap=10)
    assert FIGURES["horizon-gain"][0](found) is not None
    assert FIGURES["horizon-loss"][0](found) is not None
    assert FIGURES["loss-curves"][0](found) is None, "the rows have no curves"
    assert FIGURES["kappa"][0](found) is None
    assert FIGURES["kappa"][0](analyse(read_ladder(LADDER.parent / "kappa_cpu"), n_bootstrap=0)) is not None


def test_one_optimizer_is_compared_with_nothing(tmp_path):
    rows = [row for row in read_ladder(plant(tmp_path)) if row["opt"] == "adamw"]
    assert "nothing is compared" in answer(analyse(rows, n_bootstrap=0))[0]


def test_unfinished_runs_are_listed_and_in_no_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FIGURES", {})
    rows = read_ladder(plant(tmp_path))
    rows.append({**rows[0], "name": "lost", "final_loss": None, "status": "nonfinite"})
    found = analyse(rows, n_bootstrap=0)
    assert [row["name"] for row in found.failed] == ["lost"]
    text = write_report(found, tmp_path / "report").read_text()
    assert "run lost: loss not finite, stopped; in no fit" in text


@pytest.mark.slow
def test_the_stored_ladder_gives_what_readme_says():
    found = analyse(read_ladder(LADDER))
    for opt, mean, low, high in (("adana", 0.19, 0.09, 0.28), ("dana-muon", 0.21, 0.10, 0.31)):
        gain = found.gains[opt]
        assert gain.mean == pytest.approx(mean, abs=0.01)
        assert (gain.interval.low, gain.interval.high) == pytest.approx((low, high), abs=0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no ladder.jsonl there"),
        ([str(LADDER), "--baseline", "adamq"], "--baseline adamq"),
        ([str(LADDER), "--law", "broke"], "--law"),
    ],
)
def test_what_cannot_be_reported_is_refused_in_a_line(words, message, capsys):
    assert main(["report", *words]) == 2
    assert message in capsys.readouterr().err


# ---- comparisons ----
@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    pack([row for row in read_ladder(LADDER) if row["params"] == 45_216], folder)
    return folder


def curves_of(packed, *opts):
    names = [row["name"] for opt in opts for row in read_ladder(packed) if row["opt"] == opt][: len(opts) * 3]
    return [read_curve(packed / name) for name in names]


def test_runs_are_compared_with_the_first_adamw(packed):
    curves = [curve for opt in ("adana", "adamw") for curve in curves_of(packed, opt)[:2]]
    rows = compare(curves)
    assert [row["is_baseline"] for row in rows] == [False, False, True, False]
    assert rows[2]["compute_saved"] is None
    assert all(row["compute_saved"] is not None for row in rows if not row["is_baseline"])
    assert limits(rows[1:3])[-1] == "one seed per optimizer, so small differences may be noise"
    longer = [{**rows[1], "tokens": 2 * rows[1]["tokens"], "params": 7}, *rows[2:3]]
    assert [words.partition(",")[0] for words in limits(longer)][:2] == [
        "models of different sizes",
        "runs of different lengths",
    ]
    other = [{**rows[1], "data": "/there/words", "init_from": "base"}, {**rows[2], "data": "letters"}]
    assert [words.partition(" (")[0] for words in limits(other)][:2] == [
        "runs on different data",
        f"began with weights of other runs: {rows[1]['run']}",
    ]
    early = [
        {**rows[0], "compute_saved": 0.0, "is_bound": True, "is_reached": there} for there in (True, False)
    ]
    assert [line[-1] for line in comparison_table(early)[1]] == [">= +0.0%", "<= +0.0%"]
    assert {line.get_marker() for line in loss_figure(curves).axes[0].lines} == {
        "o"
    }  # of one evaluation, too
    fall = replace(
        curves[0],
        tokens=np.array([1, 10, 100, 200]),
        compute=np.array([1.0, 10.0, 100.0, 200.0]),
        losses=np.array([9.0, 8.0, 4.0, 3.0]),
    )
    assert (
        10 < loss_figure([fall]).axes[0].get_xlim()[0] < 100
    )  # no empty half where losses are above the figure
    with pytest.raises(UserError, match="two runs have the same name"):
        compare([curves[0], curves[0]])
    with pytest.raises(UserError, match="--baseline x is not among"):
        compare(curves, "x")


def test_nothing_is_saved_against_a_run_that_diverged(packed):
    adamw, adana = (curves_of(packed, opt)[0] for opt in ("adamw", "adana"))
    adamw.summary["diverged"] = True
    sound, lost = ["(baseline)", "(baseline)"], ["diverged", "-"]
    assert [line[-2:] for line in comparison_table(compare([adamw, adana]))[1]] == [lost, sound]
    rows = compare([adamw, adana], adamw.name)
    assert rows[1]["compute_saved"] is None
    assert [line[-2:] for line in comparison_table(rows)[1]] == [sound, ["baseline diverged", "-"]]


def test_a_comparison_writes_a_page_and_its_figures(packed, tmp_path, capsys):
    names = [str(packed / curve.name) for opt in ("adamw", "adana") for curve in curves_of(packed, opt)[:1]]
    assert main(["compare", *names, "--out", str(tmp_path / "out")]) == 0
    assert "(baseline)" in capsys.readouterr().out
    assert {"compare.md", "loss-tokens.png", "loss-compute-dark.svg"} <= {
        f.name for f in (tmp_path / "out").iterdir()
    }
    assert main(["compare", names[0], names[0]]) == 2
    assert "named twice" in capsys.readouterr().err
    assert main(["compare"]) == 2
    assert "RUN is needed" in capsys.readouterr().err
