"""Exports of Weights & Biases become ladders that the fits read; tests/fixtures/wandb/make.py wrote them."""

import json
import math
import shutil
import sys
import types
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.ladder.analysis import analyse
from danalab.ladder.rows import read_ladder
from danalab.scaling import explicit_dimensions, flops_per_token, parameter_count
from danalab_annexes.ladder.wandb import Keys, import_runs, read_api, read_exports

EXPORTS = Path(__file__).parents[2] / "fixtures" / "wandb"


@pytest.fixture
def histories(tmp_path):
    """Histories as CSV, and a JSON of the runs without them."""
    runs = json.loads((EXPORTS / "runs.json").read_text())
    folder = shutil.copytree(EXPORTS / "histories", tmp_path / "histories")
    (folder / "runs.json").write_text(json.dumps([{**run, "history": []} for run in runs]))
    return folder


@pytest.mark.parametrize("form", ["runs.json", "histories"])
def test_exports_give_the_planted_saving_whatever_their_form(tmp_path, histories, form):
    exports = EXPORTS / form if form.endswith("json") else histories
    assert main(["ladder", "import-wandb", str(exports), "--out", str(tmp_path / "out")]) == 0
    rows = read_ladder(tmp_path / "out")
    assert [row["status"] for row in rows] == ["finished"] * 8
    found = analyse(rows, n_bootstrap=0)
    assert found.gains["adana"].mean == pytest.approx(0.4, abs=0.02)
    assert all(saved.saved == pytest.approx(0.4, abs=0.02) for saved in found.saved["adana"].values())


def test_a_row_has_what_the_dimensions_say(tmp_path):
    (row,) = (row for row in import_runs(read_exports([EXPORTS / "runs.json"]), tmp_path) if row["name"] == "adana_h6")
    shape = explicit_dimensions("enoki", 192, 3, 6, 32, 768, 512)
    assert row["params"] == parameter_count(shape)
    assert row["non_emb_params"] == 12 * 192**2 * 3
    assert row["flops"] == row["tokens"] * flops_per_token(shape, 128)
    assert row["seconds"] == pytest.approx(0.01 * row["tokens"] / (8 * 128))
    assert row["settings"]["gamma3"] == 1.0
    assert analyse(read_ladder(tmp_path), n_bootstrap=0, convention="kaplan").tuned


def test_other_keys_are_named_and_what_no_key_says_is_given(tmp_path, capsys):
    run = {"name": "a b", "config": {"o": {"name": "x"}, "optim": "lion", "rate": 1e-4}, "summary": {}, "history": [
        {"batch": 10, "nll": 3.0}, {"batch": 20, "nll": 2.5}]}  # fmt: skip
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run))
    command = ["ladder", "import-wandb", str(file), "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 2
    assert "--map opt=KEY" in capsys.readouterr().err
    words = ["--map", "opt=optim", "lr=rate", "val-loss=nll", "step=batch", "--fixed", "params=1000", "seq-len=16",
             "batch-size=4"]  # fmt: skip
    assert main([*command, *words]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["name"], row["opt"], row["final_loss"], row["tokens"]) == ("a_b", "lion", 2.5, 20 * 64)
    assert row["flops"] == 6 * 1000 * row["tokens"]
    assert main([*command, "--map", "optt=optim"]) == 2
    assert "did you mean 'opt'" in capsys.readouterr().err


def test_runs_that_crashed_or_diverged_are_rows_without_a_final_loss(tmp_path):
    runs = json.loads((EXPORTS / "runs.json").read_text())
    runs[0]["state"] = "crashed"
    runs[1]["history"][-1]["final-val/loss"] = runs[1]["summary"]["final-val/loss"] = float("nan")
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    rows = import_runs(read_exports([tmp_path / "runs.json"]), tmp_path / "out")
    assert [row["status"] for row in rows[:3]] == ["unfinished", "nonfinite", "finished"]
    assert analyse(read_ladder(tmp_path / "out"), n_bootstrap=0).excluded == ["adamw_h2", "adamw_h4"]


def test_what_is_infinite_is_written_as_json_has_it(tmp_path):
    runs = json.loads((EXPORTS / "runs.json").read_text())[:1]
    runs[0]["config"]["clipsnr"] = math.inf
    runs[0]["history"][0] = {**runs[0]["history"][0], "val/loss": math.inf}
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    import_runs(read_exports([tmp_path / "runs.json"]), tmp_path / "out")
    written = "".join(file.read_text() for file in (tmp_path / "out").rglob("*.jsonl"))
    assert "Infinity" not in written
    assert "NaN" not in written
    runs[0]["config"]["lr"] = math.inf
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    with pytest.raises(UserError, match=r"run adamw_h2 .*lr is inf"):
        import_runs(read_exports([tmp_path / "runs.json"]), tmp_path / "again")


def test_runs_of_the_same_name_are_kept_apart_by_their_ids(tmp_path):
    runs = json.loads((EXPORTS / "runs.json").read_text())[:2]
    runs[1]["name"] = runs[0]["name"]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    assert [export.name for export in read_exports([tmp_path / "runs.json"])] == ["adamw_h2-id0", "adamw_h2-id1"]


HEAD = "_step,iter,tokens,val/loss\n"


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.csv", HEAD + "0,1,2\n", r"a\.csv:2: 3 fields, the heading has 4"),
        ("a.csv", HEAD + '0,1,2,"3\n', r"a\.csv:2: not CSV"),
        ("a.csv", HEAD + "0,10,99,3.1\n1,20,199,3.o1\n", r"a\.csv:3, column 'val/loss': '3\.o1' is not a number"),
        ("a.csv", "x,x\n1,2\n", r"a\.csv:1: the column 'x' appears twice"),
        ("a.csv", HEAD, "a heading and no line below"),
        ("a.csv", "", "empty"),
        ("a.json", '[{"iter": 1,\n "val/loss" 3}]', r"a\.json: not valid JSON: .* \(line 2, column 13\)"),
        ("a.json", "[1]", "step 1 of the history is int"),
        ("a.json", "3", "neither a history"),
        ("a.json", '[{"val/loss": 3}]', "step 1 of the history: a validation loss at no step"),
        ("a.txt", "x", "is expected"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line_and_column(tmp_path, name, text, what):
    (tmp_path / name).write_text(text)
    keys = Keys({}, {"opt": "adamw", "lr": 1e-3, "params": 10, "batch_size": 1, "seq_len": 8})
    with pytest.raises(UserError, match=what):
        import_runs(read_exports([tmp_path / name]), tmp_path / "out", keys)
    assert not (tmp_path / "out").exists()


def test_a_number_that_is_none_in_a_configuration_is_refused_by_name(tmp_path):
    runs = json.loads((EXPORTS / "runs.json").read_text())[:1]
    runs[0]["config"]["lr"] = "fast"
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    with pytest.raises(UserError, match="run adamw_h2: lr is 'fast'; it must be a number"):
        import_runs(read_exports([tmp_path / "runs.json"]), tmp_path / "out")


def test_a_sweep_made_here_is_never_overwritten(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match="import into another folder"):
        import_runs(read_exports([EXPORTS / "runs.json"]), tmp_path)


class FakeRun(types.SimpleNamespace):
    def scan_history(self):
        return iter(self.history)


def test_the_api_gives_the_same_rows_as_the_files(tmp_path, monkeypatch):
    asked = {}
    objects = json.loads((EXPORTS / "runs.json").read_text())

    class Api:
        def runs(self, path, filters):
            asked.update(path=path, filters=filters)
            return [FakeRun(**each) for each in objects]

    fake = types.ModuleType("wandb")
    fake.Api, fake.Error = Api, RuntimeError
    monkeypatch.setitem(sys.modules, "wandb", fake)
    rows = import_runs(read_api("me/project", {"group": "enoki"}), tmp_path / "api")
    assert asked == {"path": "me/project", "filters": {"group": "enoki"}}
    assert rows == import_runs(read_exports([EXPORTS / "runs.json"]), tmp_path / "files")


def test_a_server_that_refuses_is_one_line(monkeypatch, capsys, tmp_path):
    def refuse():
        raise ValueError("Could not find project me/none\nand more")

    fake = types.ModuleType("wandb")
    fake.Api, fake.Error = refuse, RuntimeError
    monkeypatch.setitem(sys.modules, "wandb", fake)
    assert main(["ladder", "import-wandb", "--api", "me/none", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "danalab: error: --api me/none: Could not find project me/none\n"
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["ladder", "import-wandb", "--api", "me/none", "--out", str(tmp_path)]) == 2
    assert "pip install 'danalab[track]'" in capsys.readouterr().err
