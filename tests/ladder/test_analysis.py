"""The whole way from run files to answers, on a ladder with planted truths."""

import json
import math

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.ladder.analysis import analyse
from danalab.ladder.rows import read_ladder
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


def test_what_too_few_sizes_do_not_say_is_a_note(tmp_path):
    rows = [row for row in read_ladder(plant(tmp_path)) if row["params"] <= 40_000]
    found = analyse(rows, n_bootstrap=0)
    assert not found.loss_laws
    assert not found.lr_laws
    assert any("needs runs at 4 different points, there are 2" in note for note in found.notes)
    assert found.saved["adana"][10_000].saved == pytest.approx(0.40, abs=0.02)


def test_a_baseline_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="no finished run of it; there are: adamw, adana"):
        analyse(read_ladder(plant(tmp_path)), baseline="sgd")


def test_the_command_prints_tables_for_people_and_json_for_programs(tmp_path, capsys):
    folder = plant(tmp_path)
    assert main(["fit", str(folder), "--bootstrap", "20"]) == 0
    said = capsys.readouterr().out
    assert "Compute saved against adamw" in said
    assert "all, by the laws" in said
    assert main(["fit", str(folder), "--bootstrap", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gains"]["adana"]["mean"] == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize(
    ("line", "what"),
    [("{", "not JSON"), ('{"opt": "adamw"}', "no params, curve"), ("[1]", "not a row"), ("", "no rows")],
)
def test_a_file_that_is_no_ladder_is_refused_with_its_line(tmp_path, line, what):
    (tmp_path / "ladder.jsonl").write_text(line + "\n" if line else "")
    with pytest.raises(UserError, match=what):
        read_ladder(tmp_path)
