"""Token files of every format are read with the ids that were written, or refused in one line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.data import open_data, open_dataset
from danalab.data.open import describe
from danalab.data.splits import split_name
from danalab.data.validation import validate
from danalab.errors import UserError

GPT2 = 50_257
TEXT = np.random.default_rng(0).zipf(1.2, 6000) % GPT2
"""Ids with the frequencies of words."""


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


def file(name: str, content):
    return lambda folder, ids: (folder / name).write_bytes(content(ids))


FORMATS = {
    "nanogpt": (GPT2, file("train.bin", lambda ids: ids.astype("<u2").tobytes())),
    "numbered": (GPT2, file("x_train_000001.bin", lambda ids: ids.astype("<u2").tobytes())),
    "uint32": (1 << 20, file("train.uint32.bin", lambda ids: ids.astype("<u4").tobytes())),
    "int64": (1 << 27, file("train.int64.bin", lambda ids: ids.astype("<i8").tobytes())),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, numbers = tmp_path_factory.mktemp("tokens"), itertools.count()

    def make() -> Path:
        folder = root / str(next(numbers))
        folder.mkdir()
        return folder

    return make


@pytest.mark.parametrize("name", FORMATS)
def test_any_ids_come_back_from_every_format(folders, name):
    n_ids, write = FORMATS[name]

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.integers(0, n_ids - 1), min_size=1, max_size=80))
    def check(ids):
        folder = folders()
        write(folder, np.array(ids))
        dataset = open_dataset(folder)
        assert dataset.store.read(0, 1000).tolist() == ids
        assert max(ids) < dataset.vocab_size

    check()


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int64"])
def test_tokens_json_says_the_type_of_ids_without_a_header(tmp_path, dtype):
    ids = (TEXT % 250).astype(dtype)
    (tmp_path / "train.bin").write_bytes(ids.tobytes())
    (tmp_path / "tokens.json").write_text(json.dumps({"dtype": dtype, "vocab_size": 250, "eos_id": 0}))
    dataset = open_dataset(tmp_path)
    assert np.array_equal(dataset.store.read(0, 10_000), ids)
    assert (dataset.vocab_size, dataset.eos_id) == (256, 0)
    assert validate(tmp_path).valid
    (tmp_path / "tokens.json").write_text(json.dumps({"dtype": dtype, "vocab_size": 200}))
    with pytest.raises(UserError, match=r"train\.bin: token id 2.* >= vocab_size 200 .*tokens\.json"):
        open_dataset(tmp_path)


def test_ids_beyond_16_bits_in_nanogpts_files_are_refused(tmp_path):
    ids = np.where(np.arange(2000) % 9 == 0, 128_000, TEXT[:2000] % 50_000).astype("<u4")
    (tmp_path / "train.bin").write_bytes(ids.tobytes())
    with pytest.raises(UserError, match=r"NAME\.uint32\.bin"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("name", ["train.{}.bin", "x_train_000001.{}.bin"])
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_the_name_says_the_type(tmp_path, name, dtype):
    (tmp_path / name.format(dtype)).write_bytes(TEXT.astype(dtype).tobytes())
    assert np.array_equal(open_dataset(tmp_path).store.read(0, 10_000), TEXT)


REFUSED = {
    "big-endian uint16": (TEXT.astype(">u2").tobytes(), "token id"),
    "one byte too early": (b"x" + TEXT.astype("<u2").tobytes() + b"y", "token id"),
    "half an id": (TEXT.astype("<u2").tobytes()[:-1], "no whole number of uint16 ids"),
    "no tokens": (b"", "0 bytes is no whole number"),
    "ids beyond GPT-2's": (np.full(99, 50_400, "<u2").tobytes(), "token id 50400 >= vocab_size"),
    "a shard": (b"danalab\0" + bytes(56), "without its manifest.json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_with_the_reason(tmp_path, name):
    content, reason = REFUSED[name]
    (tmp_path / "train.bin").write_bytes(content)
    with pytest.raises(UserError, match=rf"train\.bin: .*{reason}"):
        open_dataset(tmp_path)
    assert not validate(tmp_path).valid


SPLITS = [
    (["train.bin", "valid.bin"], {"train": 1, "val": 1}, ""),
    (["train.bin", "validation.bin", "test.bin", "more.bin"], {"train": 1, "val": 1}, "more.bin, test.bin"),
    (["training_0.bin", "training_1.bin", "dev.bin"], {"train": 2, "val": 1}, ""),
    (
        ["fineweb_train_000001.bin", "fineweb_train_000002.bin", "fineweb_val_000000.bin"],
        {"train": 2, "val": 1},
        "",
    ),
    (["train-00000-of-00002.bin", "train-00001-of-00002.bin", "val.bin"], {"train": 2, "val": 1}, ""),
    (
        ["train.bin", "val.bin", "valid.bin"],
        "the split 'val' has 2 files from val.bin to valid.bin; their names may differ in numbers",
        "",
    ),
]


@pytest.mark.parametrize(("names", "expected", "unread"), SPLITS, ids=lambda each: str(each)[:40])
def test_names_say_the_split_and_what_is_not_read_is_named(tmp_path, names, expected, unread, caplog):
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(np.roll(TEXT, number).astype("<u2").tobytes())
    (tmp_path / "tokens.json").write_text('{"dtype": "uint16"}')
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            open_dataset(tmp_path)
        return
    described = describe(tmp_path)
    assert {split: facts["shards"] for split, facts in described["splits"].items()} == expected
    assert described["remarks"] == ([f"not read: {unread}"] if unread else [])
    result = validate(tmp_path)
    assert [finding.reason for finding in result.warnings] == described["remarks"]
    open_data(tmp_path)
    assert (f"not read: {unread}" in caplog.text) == bool(unread)


@pytest.mark.parametrize("stem", ["train", "a-train", "x.y_train_07", "train_text_document", "train-1-of-3"])
def test_a_word_between_marks_is_a_split(stem):
    name = split_name(stem)
    assert name is not None
    assert name.split == "train"
    assert split_name(stem.replace("train", "pretrain")) is None
