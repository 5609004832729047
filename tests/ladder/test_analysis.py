"""The whole way from run files to answers, on a ladder with planted truths."""

import json
import math

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.files import read_text
from danalab.ladder.analysis import analyse
from danalab.ladder.rows import pack, read_ladder
from ladder.planted import plant


def test_planted_savings_laws_and_rates_are_found(tmp_path):
    found = analyse(read_ladder(plant(tmp_path)), n_bootstrap=40)
    assert found.opts == ["adamw", "adana"]
    assert all(each.lr_multiplier == 1.0 and each.trials == 3 and len(each.runs) == 3 for each in found.tuned)
    for saved in found.saved["adana"].values():
        assert saved.saved == pytest.approx(0.40, abs=0.02)
        assert 0.40 in saved.interval
    assert found.gains["adana"].mean == pytest.approx(0.40, abs=0.02)
    assert 0.40 in found.gains["adana"].interval
    assert 3.0 * (1e4 + 1e6) ** -0.5 in found.lr_laws["adamw"].interval(1e6)
    assert not found.notes
    json.dumps(found.as_dict())


def test_failed_runs_are_counted_and_shown_never_fitted(tmp_path):
    rows = read_ladder(plant(tmp_path))
    rows[0]["final_loss"], rows[1]["final_loss"] = None, math.nan
    found = analyse(rows, n_bootstrap=0)
    assert found.excluded == [rows[0]["name"], rows[1]["name"]]


def test_a_ladder_that_cannot_be_read_ends_in_one_line(tmp_path):
    row = {
        "opt": "adamw",
        "params": 1e5,
        "lr": 1e-3,
        "tokens": 1e6,
        "flops": 6e11,
        "final_loss": 3.0,
        "curve": "c.jsonl",
    }
    file = tmp_path / "ladder.jsonl"
    for text, what in (
        (b"\xff\xfe", "not UTF-8"),
        (json.dumps({**row, "settings": [1]}).encode(), "settings is"),
        (json.dumps({**row, "lr": "a"}).encode(), "lr is 'a'"),
    ):
        file.write_bytes(text)
        with pytest.raises(UserError, match=what):
            read_ladder(tmp_path)
    (tmp_path / "c.jsonl").write_text('{"step": 1, "tokens": 5, "val/loss": "a"}\n')
    file.write_text("".join(json.dumps({**row, "opt": opt}) + "\n" for opt in ("adamw", "adana")))
    rows = read_ladder(tmp_path)
    assert rows[0]["params"] == 100_000
    assert isinstance(rows[0]["params"], int)
    assert any("c.jsonl:1: not a row of metrics: val/loss" in note for note in analyse(rows, n_bootstrap=0).notes)
    with pytest.raises(UserError, match="none of 1 runs has finished"):
        analyse([{**rows[0], "final_loss": None}])


@pytest.mark.slow
def test_a_rate_that_diverged_was_tried_and_bounds_the_best_one(tmp_path):
    rows = read_ladder(plant(tmp_path))
    best = {(row["opt"], row["params"]) for row in rows}
    for row in rows:
        if row["lr_multiplier"] == 2.0:
            row |= {"status": "nonfinite", "final_loss": None, "tokens": 5}
        row["final_loss"] = row["final_loss"] and row["final_loss"] - 0.05 * (row["lr_multiplier"] == 1.0)
    found = analyse(rows, n_bootstrap=0)
    assert len(found.tuned) == len(best)
    assert all(each.trials == 3 and len(each.rates) == 3 and not each.at_edge for each in found.tuned)
    assert not any("outermost" in note for note in found.notes)
    assert not found.tolerances["adamw"][10_000].high_is_open


def test_what_too_few_sizes_do_not_say_is_a_note(tmp_path):
    rows = [row for row in read_ladder(plant(tmp_path)) if row["params"] <= 40_000]
    found = analyse(rows, n_bootstrap=0)
    assert not found.loss_laws
    assert not found.lr_laws
    assert any("needs runs at 4 different points, there are 2" in note for note in found.notes)
    assert found.saved["adana"][10_000].saved == pytest.approx(0.40, abs=0.02)


def test_what_differs_in_more_than_its_seed_is_another_trial_not_another_seed(tmp_path):
    rows = read_ladder(plant(tmp_path, seeds=1, multipliers=(1.0,)))
    better = [{**row, "settings": {"kappa": 0.7}, "final_loss": row["final_loss"] - 0.01} for row in rows]
    found = analyse([*rows, *better], n_bootstrap=0)
    assert all(len(each.runs) == 1 and each.trials == 2 for each in found.tuned)
    assert all(each.runs[0]["settings"] == {"kappa": 0.7} for each in found.tuned)


@pytest.mark.slow
def test_rates_are_predicted_beyond_the_sizes_and_said_to_be_extrapolated(tmp_path):
    found = analyse(read_ladder(plant(tmp_path)), n_bootstrap=20, predict=(1e5, 1e7))
    inside, beyond = found.predicted_rates["adamw"]
    assert (inside.extrapolated, beyond.extrapolated) == (False, True)
    assert 3.0 * (1e4 + 1e7) ** -0.5 in beyond.interval
    assert 0.02 in found.shared_curvatures["adamw"].interval
    within = found.tolerances["adamw"][10_000]
    assert within.low_is_open
    assert within.high_is_open


@pytest.mark.slow
def test_rates_that_were_not_tuned_give_no_law(tmp_path):
    found = analyse(read_ladder(plant(tmp_path, multipliers=(1.0,))), n_bootstrap=0)
    assert not found.lr_laws
    assert any("one learning rate was tried at each size" in note for note in found.notes)


@pytest.mark.slow
def test_three_sizes_give_a_law_of_rates_without_an_interval(tmp_path):
    rows = [row for row in read_ladder(plant(tmp_path)) if row["params"] <= 160_000]
    found = analyse(rows, n_bootstrap=5)
    assert found.lr_laws["adamw"].intervals == {}
    assert any("3 sizes give its three coefficients and no interval; 4 are needed" in note for note in found.notes)


@pytest.mark.slow
def test_one_optimizer_of_too_few_runs_leaves_the_others_their_laws(tmp_path):
    rows = read_ladder(plant(tmp_path))
    found = analyse([row for row in rows if row["opt"] == "adamw" or row["params"] < 1e5], n_bootstrap=0)
    assert set(found.loss_laws) == {"adamw"}
    assert any("loss law of adana" in note for note in found.notes)
    assert not found.gains


@pytest.mark.slow
def test_each_law_may_have_an_irreducible_loss_of_its_own(tmp_path):
    rows = read_ladder(plant(tmp_path))
    together, apart = (analyse(rows, n_bootstrap=0, joint=joint).loss_laws for joint in (True, False))
    assert together["adamw"].E == together["adana"].E
    assert apart["adamw"].E != apart["adana"].E


@pytest.mark.slow
def test_a_ladder_at_one_ratio_of_tokens_is_told_what_a_chinchilla_law_needs(tmp_path):
    found = analyse(read_ladder(plant(tmp_path)), law="chinchilla", n_bootstrap=0)
    assert not found.loss_laws
    assert any("--tokens-per-param" in note or "needs runs at 6" in note for note in found.notes)


@pytest.mark.slow
def test_a_ladder_can_be_moved_and_packed_without_its_runs(tmp_path):
    rows = read_ladder(plant(tmp_path / "here"))
    pack(rows, tmp_path / "small")
    (tmp_path / "small").rename(tmp_path / "moved")
    moved = read_ladder(tmp_path / "moved")
    assert [row["final_loss"] for row in moved] == [row["final_loss"] for row in rows]
    assert str(tmp_path) not in read_text(tmp_path / "moved" / "ladder.jsonl.gz")
    assert analyse(moved, n_bootstrap=0).saved == analyse(rows, n_bootstrap=0).saved


def test_no_rows_are_packed_into_no_folder(tmp_path):
    with pytest.raises(UserError, match="no rows to pack"):
        pack([], tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_rows_of_older_ladders_are_read_and_freed_of_their_machine(tmp_path):
    plant(tmp_path)
    file = tmp_path / "ladder.jsonl"
    old = [json.loads(line) for line in file.read_text().splitlines()]
    for row in old:
        row["settings"] = {"run_dir": "/home/me/ladder/runs/x", "data": "/home/me/data/text", "opt": row["opt"]}
        row["curve"] = f"/home/me/ladder/{row['curve']}"
    file.write_text("".join(json.dumps(row) + "\n" for row in old))
    row = read_ladder(file)[0]
    assert row["settings"] == {"data": "text", "opt": "adamw"}
    assert row["curve"] == str(tmp_path / row["curve"].rsplit("/", 1)[1])


def test_a_baseline_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="no finished run of it; there are: adamw, adana"):
        analyse(read_ladder(plant(tmp_path)), baseline="sgd")


def test_the_command_prints_tables_for_people_and_json_for_programs(tmp_path, capsys):
    folder = plant(tmp_path)
    assert main(["report", "--tables-only", str(folder), "--bootstrap", "20"]) == 0
    said = capsys.readouterr().out
    assert "Compute saved against adamw" in said
    assert "all, by the laws" in said
    assert main(["report", "--tables-only", str(folder), "--bootstrap", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gains"]["adana"]["mean"] == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "not valid JSON"),
        ('{"opt": "adamw"}', "no params, curve"),
        ("[1]", "not a row"),
        ("", "no rows"),
        ('{"opt": "a", "params": 1, "curve": "c", "final_loss": 3.0}', "lr is None beside a final loss"),
        ('{"opt": "a", "params": "many", "curve": "c"}', "params is 'many'; it must be a number"),
    ],
)
def test_a_file_that_is_no_ladder_is_refused_with_its_line(tmp_path, line, what):
    (tmp_path / "ladder.jsonl").write_text(line + "\n" if line else "")
    with pytest.raises(UserError, match=what):
        read_ladder(tmp_path)


def test_a_fitted_law_feeds_the_next_plan(tmp_path, capsys):
    folder, rules = plant(tmp_path), tmp_path / "rules.yaml"
    file = folder / "ladder.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row["arch"], row["settings"] = "enoki", {**row["settings"], "global_batch": 32, "omega": 4.0}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", "--tables-only", str(folder), "--bootstrap", "0", "--rules", str(rules), "--json"]) == 0
    law = json.loads(capsys.readouterr().out)["lr_laws"]["adana"]
    assert main(["plan", "--heads", "6", "--opt", "adana", "--rules", str(rules), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["lr"] == pytest.approx(law["a"] * (law["b"] + planned["non_emb_params"]) ** law["d"])
