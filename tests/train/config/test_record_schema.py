"""config.json of a run folder: old ones open, damaged ones are named in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from danalab.errors import UserError
from danalab.train.run.folder import RunFolder
from danalab.train.run.schemas import check_record

OLD = Path(__file__).parents[2] / "fixtures" / "runs_0_1"


@pytest.mark.parametrize("name", ["single", "zero"])
def test_runs_of_version_0_1_open(name):
    record = RunFolder(OLD / name).read_config()
    assert record["config"]["opt"]
    assert record["config"]["init_from"] is None, "newer than the run"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "config: Field required"),
        ("[]", "malformed"),
        ("null", "malformed"),
        ("3", "malformed"),
        ('{"config": []}', "config: Input should be a valid dictionary"),
        ('{"config": {"heads": "many"}}', "config: heads: 'many': must be a whole number"),
        ('{"config": {"batch_size": 0}}', "batch_size: 0: must be at least 1"),
        ('{"config": {}, "params": -1}', "params"),
        ('{"config": {}, "dataset": {"path": 3}}', "dataset"),
        ('{"config": {}, "plan": {}}', "plan.non_emb_params"),
        ('{"config": {"seed": 1' + "0" * 5000 + "}}", "not valid JSON"),
        ('{"config": ' + "[" * 100_000, "not valid JSON"),
        ('{"config"', "not valid JSON"),
    ],
)
def test_a_damaged_file_is_named_with_its_entry(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        RunFolder(tmp_path).read_config()
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_entries_of_a_later_version_are_kept():
    record = check_record({"config": {"later": 1}, "later": {"a": 2}}, "config.json")
    assert (record["config"]["later"], record["later"]) == (1, {"a": 2})
    assert json.dumps(record)
