"""danalab compare as a person calls it: by folders, wherever they lie."""

import json
import shutil

import pytest

from danalab.cli.app import main


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "a" / "adamw-s0"
    folder.mkdir(parents=True)
    record = {"config": {"opt": "adamw", "lr": 0.1, "seed": 0}, "model": {"d": 1}, "params": 10}
    (folder / "config.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text(
        json.dumps({"step": 1, "tokens": 7, "flops": 1.0, "val/loss": 3.0}) + "\n"
    )
    return folder


def test_runs_of_one_name_from_two_places_are_called_by_their_paths(run, tmp_path, capsys):
    other = tmp_path / "b" / "adamw-s0"
    shutil.copytree(run, other)
    assert main(["compare", str(run), str(other), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert main(["compare", "--run", str(run), str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == rows
    assert main(["compare"]) == 2
    assert "RUN is needed" in capsys.readouterr().err
    assert [row["run"] for row in rows] == [str(run), str(other)]
    assert [row["compute_saved"] for row in rows] == [None, 0]


def test_a_folder_that_is_named_twice_and_a_folder_of_runs_are_refused(run, capsys):
    assert main(["compare", str(run), f"{run}/../adamw-s0"]) == 2
    assert "named twice" in capsys.readouterr().err
    assert main(["compare", str(run.parent)]) == 2
    assert f"not a run folder (it has runs: {run.parent}/" in capsys.readouterr().err
