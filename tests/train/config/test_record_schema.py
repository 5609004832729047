"""config.json of a run folder: old ones open, damaged ones are named in one line."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

import pytest

from danalab.data.vocabulary import VocabularyInfo
from danalab.errors import UserError
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
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


@pytest.mark.parametrize(
    "given",
    [
        {"heads": 3, "opt": "ademamix", "kappa": 0.8, "beta1": 0.7},
        {"arch": "moe", "heads": 2, "router_z_loss": 0.1, "context_len": 4096, "batch_ramp": "8:3"},
        {
            "arch": "resonance",
            "size": "small",
            "opt": "muon",
            "optimizer_settings": {"ns_steps": 6},
            "extend_to": 99999,
        },
    ],
)
def test_config_json_has_each_fact_once_and_is_read_as_before(tmp_path, given):
    data = VocabularyInfo("words", "gpt2", 50304, 50304, 50256)
    spec = resolve(TrainConfig(**given, data="words", run_dir=tmp_path), data, device_type="cuda")
    facts = {"path": "words", "fingerprint": "0", "tokens": 3, "tokenizer_name": "gpt2"}
    written = {**spec.as_dict(), "params": spec.model.exact_params, "dataset": facts, "device_name": "H200"}
    keys = [key for part in written.values() if isinstance(part, dict) for key in part] + list(written)
    assert not [key for key, count in Counter(keys).items() if count > 1]
    (tmp_path / "config.json").write_text(json.dumps(written))
    record = RunFolder(tmp_path).read_config()
    settings = {**spec.settings, "dtype": "bfloat16", "compile": spec.compile}
    assert record["config"] == json.loads(json.dumps(settings))
    assert record["plan"] == json.loads(json.dumps(spec.as_dict()))
    assert (record["steps"], record["params"]) == (spec.last_step, record["plan"]["exact_params"])
    assert (record["dataset"]["tokenizer"], record["device"]) == ("gpt2", "H200")
    assert resolve(TrainConfig(**record["config"]), data).optimizer_settings == spec.optimizer_settings


@pytest.mark.parametrize(
    ("part", "entry", "message"),
    [
        ("given", {"seed": -1}, "config: seed: -1: must be at least 0"),
        ("budget", {"iterations": 0}, "budget.iterations"),
        ("optimizer", {"lr": None}, "optimizer.lr"),
        ("model", {"n_layers": "many"}, "model: malformed: n_layers"),
    ],
)
def test_a_damaged_part_is_named(tmp_path, part, entry, message):
    spec = resolve(TrainConfig(heads=2, run_dir=tmp_path), VocabularyInfo("words", "gpt2", 64, 64, 0))
    written = spec.as_dict()
    written[part] |= entry
    with pytest.raises(UserError, match=message):
        check_record(written, "config.json")


@pytest.mark.parametrize("part", ["given", "model", "budget", "optimizer", "execution", "dataset"])
def test_no_damaged_entry_ends_in_a_traceback(tmp_path, part):
    spec = resolve(TrainConfig(heads=2, run_dir=tmp_path), VocabularyInfo("words", "gpt2", 64, 64, 0))
    facts = {"path": "words", "fingerprint": "0", "tokens": 3, "tokenizer_name": "gpt2"}
    whole = json.loads(json.dumps({**spec.as_dict(), "dataset": facts}))
    for number, key in enumerate(whole[part]):
        for value in (None, "x", -1, [3], {"a": 1}, 1e308, True, 10**30)[number % 2 :: 2]:
            with contextlib.suppress(UserError):
                assert check_record({**whole, part: {**whole[part], key: value}}, "config.json")["config"]["opt"]


def test_entries_of_a_later_version_are_kept():
    record = check_record({"config": {"later": 1}, "later": {"a": 2}}, "config.json")
    assert (record["config"]["later"], record["later"]) == (1, {"a": 2})
    assert json.dumps(record)
