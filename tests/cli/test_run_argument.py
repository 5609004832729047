"""generate, export and eval take the run folder as first argument or by --run; damaged runs are one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from cli.test_fuzz import DAMAGES
from danalab.cli._shared.model_flags import ModelFlags, stages_of
from danalab.cli.app import main
from danalab.errors import UserError

VERBS = {
    "generate": ["--max-new-tokens", "4", "--temperature", "0"],
    "eval": ["--device", "cpu"],
    "export": ["--dtype", "bf16"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_run_is_the_first_argument_or_a_flag(verb, run, tmp_path, capsys):
    found = []
    for number, given in enumerate(([str(run)], ["--run", str(run)])):
        out = ["--out", str(tmp_path / str(number))] if verb == "export" else []
        assert main([verb, *given, *VERBS[verb], *out, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        for sample in printed.get("samples", []):
            assert sample["tokens"] <= 4
        found.append({key: value for key, value in printed.items() if key not in ("folder", "seconds")})
    assert found[0] == found[1]


@pytest.mark.parametrize("verb", VERBS)
def test_it_is_needed(verb, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")] if verb == "export" else []
    assert main([verb, *VERBS[verb], *out]) == 2
    assert re.search("RUN is needed|run folder", refusal(capsys))


def refusal(capsys) -> str:
    """The one line on standard error that says what is wrong."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("danalab: error: ")]
    assert len(lines) == 1, lines
    return lines[0].removeprefix("danalab: error: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "--temperature", "inf"], "temperature is inf; it must be finite"),
        (["RUN", "--temperature", "nan"], "temperature is nan; it must be finite"),
        (["RUN", "--prompt", "a\udcff"], "surrogate"),
        (["/nowhere\udcff"], "nowhere"),
        (["/nowhere\0"], "nowhere"),
        (["--from", "/nowhere\udcff"], "nowhere"),
        (["--from", "/nowhere\0"], "nowhere"),
    ],
)
def test_generate_refuses_what_is_no_number_text_or_path(words, message, run, capsys):
    words = [str(run) if word == "RUN" else word for word in words]
    assert main(["generate", *words, "--max-tokens", "1"]) == 2
    assert message in refusal(capsys)


def changed(part: str | None = None, **values):
    """config.json with other `values` in one of its parts; None: the key is missing."""

    def edit(content: bytes) -> bytes:
        record = json.loads(content)
        place = record if part is None else record[part]
        for key, value in values.items():
            place.pop(key)
            if value is not None:
                place[key] = value
        return json.dumps(record).encode()

    return edit


RECORDS = {
    **{f"file {name}": (damage, "config.json|not a run folder") for name, damage in DAMAGES.items()},
    "without config": (changed(config=None), r"config\.json: malformed"),
    "config is a number": (changed(config=3), r"config\.json: malformed"),
    "width is text": (changed("config", d_model="wide"), r"config\.json: d_model: 'wide'"),
    "rate is a list": (changed("config", lr=[1]), r"config\.json: lr: \[1\]"),
    "seed below 0": (changed("config", seed=-1), r"config\.json: seed: -1"),
    "an older version": (lambda _: b'{"budget": {}, "config": {}}', "danalab at commit [0-9a-f]{8} reads it"),
}
"""Name -> (what happens to config.json, what every verb says of it)."""
MODELS = {
    "without model": (changed(model=None), "config.json"),
    "model is a list": (changed(model=[]), "config.json"),
    "unknown architecture": (changed("model", arch="nothing"), "nothing"),
    "no width": (changed("model", d_model=None), r"config\.json.*d_model"),
    "width is text": (changed("model", d_model="16"), r"config\.json.*d_model"),
    "another width": (changed("model", d_model=32), "shape|size|checkpoint"),
    "no layers": (changed("model", n_layers=0), "layers"),
}
"""Likewise of the model, which not every verb reads."""
READERS = {
    "generate": ["--max-tokens", "1"],
    "eval": [],
    "export": ["--out", "OUT"],
    "compare": [],
    "train": ["--d-model", "16", "--n-layers", "1", "--n-heads", "1", "--data", "DATA"],
}


def read(verb: str, run: Path) -> int:
    given = {"OUT": str(run.parent / "out"), "DATA": str(run.parent / "set")}
    words = [given.get(word, word) for word in READERS[verb]]
    return main([verb, *(["--run-dir", str(run)] if verb == "train" else [str(run)]), *words])


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_is_refused_in_one_line(name, verb, run, tmp_path, capsys):
    damage, message = RECORDS[name]
    copy = copied(run, tmp_path)
    content = damage((copy / "config.json").read_bytes())
    (copy / "config.json").unlink()
    if content is not None:
        (copy / "config.json").write_bytes(content)
    elif verb == "train":
        return  # it writes the record again
    assert read(verb, copy) == 2
    assert_matches(message, refusal(capsys))


@pytest.mark.parametrize("verb", ["generate", "export", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_a_damaged_model_is_refused_in_one_line(name, verb, run, tmp_path, capsys):
    damage, message = MODELS[name]
    copy = copied(run, tmp_path)
    (copy / "config.json").write_bytes(damage((copy / "config.json").read_bytes()))
    assert read(verb, copy) == 2
    assert_matches(message, refusal(capsys))


def copied(run: Path, tmp_path: Path) -> Path:
    (tmp_path / "set").symlink_to(run.parent / "set")
    return Path(shutil.copytree(run, tmp_path / "run"))


def assert_matches(pattern: str, text: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        raise ValueError(text)


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize(
    "kind", ["empty folder", "file", "another program's", "Hugging Face", "truncated weights"]
)
def test_a_foreign_or_broken_folder_is_refused_in_one_line(kind, verb, run, tmp_path, capsys):
    copy = tmp_path / "run"
    if kind == "truncated weights":
        for file in (copied(run, tmp_path) / "checkpoints").rglob("*"):
            if file.is_file() and file.stat().st_size > 1000 and file.suffix != ".json":
                file.write_bytes(file.read_bytes()[:100])
        if verb in ("compare", "train"):
            return  # one reads no weights, the other passes over the checkpoint
    elif kind == "file":
        copy.write_text("text")
    else:
        copy.mkdir()
        if kind == "empty folder" and verb == "train":
            return  # a new run
        text = {"another program's": '{"name": "x"}', "Hugging Face": '{"model_type": "gpt2"}'}.get(kind)
        if text:
            (copy / "config.json").write_text(text)
    if not (tmp_path / "set").exists():
        (tmp_path / "set").symlink_to(run.parent / "set")
    assert read(verb, copy) == 2
    assert "run" in refusal(capsys)


def test_a_speedrun_folder_is_its_last_finished_stage_or_all(tmp_path):
    for file in ("speedrun.json", "base/config.json", "mid/config.json"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")
    assert stages_of(tmp_path) == [tmp_path / "base", tmp_path / "mid"]
    assert stages_of(tmp_path / "mid") == [tmp_path / "mid"]
    with pytest.raises(UserError, match="mid"):
        ModelFlags(run=tmp_path).open()
