"""Validation lists everything that is wrong, with the place, and goes on past the first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.cli.app import main
from danalab.data.array_split import split_arrays
from danalab.data.validation import validate
from danalab.errors import UserError


def _ids(n: int, seed: int, length: int = 33, high: int = 500) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, (n, length))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Four good files of 5 sequences."""
    place = tmp_path / "data"
    (place / "deep").mkdir(parents=True)
    np.save(place / "a.npy", _ids(5, 0).astype(np.uint16))
    np.save(place / "deep" / "b.npy", _ids(5, 1).astype(np.int32))
    torch.save(torch.from_numpy(_ids(5, 2)), place / "c.pt")
    np.save(place / "d.npy", _ids(5, 3))
    return place


def test_good_data_are_valid_and_counted(folder):
    result = validate(folder)
    assert result.valid, result.errors
    everything = np.concatenate([_ids(5, seed) for seed in range(4)])
    assert result.as_dict() | {"path": ""} == {
        "valid": True,
        "path": "",
        "layout": "arrays",
        "file_format": ".npy, .pt",
        "num_files": 4,
        "sequences_per_file": 5,
        "total_sequences": 20,
        "sequence_length": 33,
        "total_tokens": 660,
        "vocab_size": 50257,
        "unique_tokens": len(np.unique(everything)),
        "avg_token_value": pytest.approx(everything.mean()),
        "min_id": everything.min(),
        "max_id": everything.max(),
        "errors": [],
        "warnings": [],
    }


COPIED = "a copy of sequence 0 of a.npy; so are 4 others"
BAD = {
    "one dimension": (lambda p: np.save(p, _ids(5, 7).ravel()), r"shape is \[165\]", None),
    "floats": (lambda p: np.save(p, _ids(5, 7) / 1.0), "not rows of integers: float64 of shape", None),
    "not a number": (lambda p: np.save(p, np.full((5, 33), np.nan)), "float64 of shape", None),
    "booleans": (lambda p: np.save(p, _ids(5, 7) > 3), "bool of shape", None),
    "negative": (lambda p: np.save(p, _ids(5, 7) - 1000 * (np.arange(33) == 4)), r"token id -", (0, 4)),
    "too large": (
        lambda p: np.save(p, _ids(5, 7) + 60000 * (np.arange(5) == 3)[:, None]),
        "token id 60",
        (3, 0),
    ),
    "other length": (lambda p: np.save(p, _ids(5, 7, 20)), "sequences of 20 tokens, 33 in most files", None),
    "one token": (lambda p: np.save(p, _ids(5, 7, 1)), r"shape is \[5, 1\]", None),
    "no sequences": (lambda p: np.save(p, _ids(0, 7)), r"shape is \[0, 33\]", None),
    "empty": (lambda p: p.write_bytes(b""), "damaged", None),
    "cut off": (lambda p: p.write_bytes(p.with_name("a.npy").read_bytes()[:-9]), "damaged", None),
    "too long": (lambda p: p.write_bytes(p.with_name("a.npy").read_bytes() + b"xx"), "2 bytes more", None),
    "rubbish": (lambda p: p.write_bytes(b"rubbish" * 99), "damaged", None),
    "objects": (lambda p: np.save(p, np.array([[{}, 1]], object), allow_pickle=True), "damaged", None),
    "dangling": (lambda p: p.symlink_to("gone"), "a dangling symbolic link", None),
    "a folder": (lambda p: p.mkdir(), None, None),
    "a copy": (lambda p: p.write_bytes(p.with_name("a.npy").read_bytes()), COPIED, (0,)),
    "a second name": (lambda p: os.link(p.with_name("a.npy"), p), COPIED, (0,)),
    "repeated sequences": (
        lambda p: np.save(p, np.concatenate([_ids(2, 8), _ids(5, 0)[1:3]])),
        "a copy of sequence 1 of a.npy; so are 1 others of this file",
        (2,),
    ),
    "repeats of its own": (
        lambda p: np.save(p, np.concatenate([_ids(2, 8), _ids(2, 8)[1:]])),
        "a copy of sequence 1 of x.npy",
        (2,),
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_each_fault_is_named_with_its_place(folder, kind):
    spoil, reason, position = BAD[kind]
    spoil(folder / "x.npy")
    result = validate(folder)
    if reason is None:
        assert result.valid
        return
    (finding,) = result.errors
    assert finding.file == "x.npy"
    assert finding.position == position
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(finding.reason)


def test_every_bad_file_is_listed(folder):
    kinds = [kind for kind, (_, reason, _) in BAD.items() if reason]
    for number, kind in enumerate(kinds):
        (folder / "more").mkdir(exist_ok=True)
        (folder / "more" / "a.npy").unlink(missing_ok=True)
        np.save(folder / "more" / "a.npy", _ids(5, 100 + number))
        BAD[kind][0](folder / "more" / "x.npy")
        (folder / "more").rename(folder / f"m{number:02d}")
    result = validate(folder)
    named = {finding.file for finding in result.errors}
    assert named == {f"m{number:02d}/x.npy" for number in range(len(kinds))}


def test_a_pt_file_with_code_is_refused_and_the_code_not_run(folder, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/sprung",)

    torch.save(Trap(), folder / "x.pt")
    (finding,) = validate(folder).errors
    assert "nothing was executed" in finding.reason
    assert not (tmp_path / "sprung").exists()


def test_other_pt_contents_are_refused(folder):
    torch.save({"a": torch.ones(2, 33)}, folder / "x.pt")
    torch.save(torch.ones(2, 33, dtype=torch.bfloat16), folder / "y.pt")
    reasons = [finding.reason for finding in validate(folder).errors]
    for reason, what in zip(reasons, ("a dict; it must be a tensor", "bfloat16"), strict=True):
        assert what in reason


def test_a_sequence_in_both_splits_is_found(folder, tmp_path):
    np.save(folder / "x.npy", np.concatenate([_ids(4, 9), _ids(5, 0)[:1]]))
    (tmp_path / "s" / "train").mkdir(parents=True)
    (tmp_path / "s" / "val").mkdir()
    (tmp_path / "s" / "train" / "a.npy").symlink_to(folder / "a.npy")
    (tmp_path / "s" / "val" / "x.npy").symlink_to(folder / "x.npy")
    (finding,) = validate(tmp_path / "s").errors
    assert str(finding) == "val/x.npy [4]: a copy of sequence 0 of train/a.npy"


def test_splits_by_sequence_count_each_sequence_once(folder, tmp_path):
    split_arrays(folder, tmp_path / "s", val_ratio=0.3, by="sequence")
    result = validate(tmp_path / "s")
    assert result.valid, result.errors
    assert result.total_sequences == 20


def test_duplicates_may_be_allowed(folder):
    np.save(folder / "x.npy", _ids(5, 0))
    result = validate(folder, allow_duplicates=True)
    assert result.valid
    assert [finding.file for finding in result.warnings] == ["x.npy"]


def test_the_length_may_be_demanded(folder):
    assert validate(folder, seq_len=33).valid
    assert len(validate(folder, seq_len=32768).errors) == 4


def test_the_vocabulary_may_be_given(folder):
    assert validate(folder, vocab_size=500).valid
    assert len(validate(folder, vocab_size=300).errors) == 4


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=30),
    kind=st.sampled_from(["uint16", ">u2", "int64", "int32"]),
)
def test_repeated_rows_are_those_that_occurred_before(tmp_path_factory, rows, kind):
    file = tmp_path_factory.mktemp("rows") / "x.npy"
    np.save(file, np.array(rows).astype(kind))
    expected = [(i, rows.index(row)) for i, row in enumerate(rows) if rows.index(row) < i]
    found = validate(file).errors
    assert bool(found) == bool(expected)
    if expected:
        more = f"; so are {len(expected) - 1} others of this file" if len(expected) > 1 else ""
        assert found[0].position == (expected[0][0],)
        assert found[0].reason == f"a copy of sequence {expected[0][1]} of x.npy{more}"


def test_counts_leave_out_what_is_outside_and_say_where(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1, 1, 12], [-3, 9, 0]]))
    result = validate(tmp_path / "x.npy", vocab_size=10)
    (finding,) = result.errors
    assert (finding.position, finding.reason[:13]) == ((0, 2), "token id 12 i")
    assert (result.unique_tokens, result.avg_token_value) == (3, 11 / 4)
    assert (result.min_id, result.max_id) == (-3, 12)


# ---- the command ----


def _run(capsys, *arguments) -> tuple[int, str]:
    code = main(["data", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_the_command_prints_what_was_found(folder, capsys):
    code, out = _run(capsys, "validate", folder)
    assert code == 0
    result = validate(folder)
    ids = f"{result.unique_tokens} different ids of 50,257: {result.min_id} to {result.max_id}, on average "
    assert out.splitlines()[:3] == [
        f"{folder}: valid",
        "  660 tokens in 20 sequences of 33, 4 .npy, .pt files",
        f"  {ids}{result.avg_token_value:.1f}",
    ]
    assert json.loads((folder / "validation_results.json").read_text())["total_tokens"] == 660
    assert validate(folder).valid  # its own results do not disturb it


def test_the_command_ends_with_1_and_lists_the_faults(folder, capsys):
    np.save(folder / "x.npy", _ids(5, 7) / 1.0)
    (folder / "y.pt").write_bytes(b"")
    code, out = _run(capsys, "validate", folder, "--json")
    found = json.loads(out)
    assert code == 1
    assert not found["valid"]
    assert [error["file"] for error in found["errors"]] == ["x.npy", "y.pt"]


def test_data_that_cannot_be_written_to_are_validated_all_the_same(folder, capsys, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("danalab.files.write_atomically", refuse)
    assert _run(capsys, "validate", folder)[0] == 0


@pytest.mark.parametrize("what", ["nothing", "empty", "file.txt"])
def test_what_holds_no_data_fails(tmp_path, capsys, what):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    assert _run(capsys, "validate", tmp_path / what)[0] == (2 if what == "nothing" else 1)


def test_advice_names_commands_that_the_parser_takes(tmp_path):
    import shlex

    from danalab.data.validation import Validation
    from danalab.train.advice import advise
    from danalab.train.config.flags import parse
    from danalab.train.config.train_config import TrainConfig

    result = Validation("some folder", "arrays", ".npy", 9, 50257, sequences=[1], sequence_length=32768)
    result.total_tokens = 10_000_000_000
    advice = advise(result, divided=False)
    assert all(size["tokens"] <= result.total_tokens for size in advice["sizes"])
    assert "--output-path 'some folder-split'" in advice["prepare"][0]
    for size in advice["sizes"]:
        flags = parse(TrainConfig, shlex.split(size["command"])[2:], "x")
        assert (flags.arch, flags.data, flags.seq_len) == ("resonance", "some folder-split", 32767)


@pytest.mark.parametrize("tokens", [10**7, 3 * 10**8, 10**10])
def test_the_command_for_long_contexts_trains_a_resonance_model(tokens):
    from danalab.data.validation import Validation
    from danalab.train.advice import advice_text, advise

    result = Validation("folder", "arrays", ".npy", 9, 50257, sequences=[1], sequence_length=32768)
    result.total_tokens = tokens
    advice = advise(result, divided=True)
    assert "--arch resonance" in advice_text(advice).split("commands:")[1].split("\n")[1]


def test_an_invalid_set_shows_the_number_of_bad_files(folder):
    for name in ("x.npy", "y.npy"):
        (folder / name).write_bytes(b"junk")
    text = validate(folder).as_text()
    assert text.startswith(f"{folder}: not valid, 2 bad files\n")


@pytest.mark.parametrize("layout", ["arrays", "shards"])
def test_no_command_is_advised_whose_batch_the_data_do_not_fill(layout):
    from danalab.data.validation import Validation
    from danalab.train.advice import advice_text, advise

    result = Validation("folder", layout, ".npy", 9, 50257, sequences=[14], sequence_length=64)
    result.total_tokens = 14 * 64
    assert advice_text(advise(result, divided=True)).startswith("too few tokens for a model of usual size")


def test_missing_paths_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        validate(tmp_path / "x")


def test_one_file_may_be_validated(folder):
    assert validate(folder / "a.npy").total_sequences == 5


# ---- other layouts ----


def test_bare_files_are_validated_too(tmp_path):
    ids = np.random.default_rng(0).integers(0, 50256, 5000).astype("<u2")
    ids[::100] = 50256
    ids.tofile(tmp_path / "train.bin")
    ids[:700].tofile(tmp_path / "val.bin")
    result = validate(tmp_path)
    assert result.valid, result.errors
    assert (result.layout, result.num_files, result.total_tokens) == ("bare", 2, 5700)
    assert result.sequences == [50, 7]  # documents
    assert result.unique_tokens == len(np.unique(ids))
    assert "5,700 tokens in 57 documents, 2 .bin files" in result.as_text()
    (tmp_path / "val.bin").write_bytes(b"abc")
    assert [error.file for error in validate(tmp_path).errors] == ["val.bin"]


def test_shards_are_validated_too(tmp_path):
    from danalab.data import prepare

    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"document {number} " * 9)
    inputs = sorted(tmp_path.glob("*.txt"))
    folder = prepare("text", "bytes", tmp_path / "set", inputs=inputs, progress=False)
    result = validate(folder)
    assert result.valid, result.errors
    assert result.layout == "shards"
    assert result.total_sequences == 20
    content = bytearray((folder / "train-00000.bin").read_bytes())
    content[-3] ^= 1
    (folder / "train-00000.bin").write_bytes(content)
    (finding,) = validate(folder).errors
    assert finding.file == "train-00000.bin"
