"""Token files of every format are read with the ids that were written, or refused in one line."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.data import open_data, open_dataset
from danalab.data.dataset import Dataset
from danalab.data.open import describe
from danalab.data.splits import split_name
from danalab.data.tokenizers import load_tokenizer
from danalab.data.validation import validate
from danalab.errors import UserError

GPT2 = 50_257
TEXT = np.random.default_rng(0).zipf(1.2, 6000) % GPT2
"""Ids with the frequencies of words."""
TRIES = pytest.mark.parametrize("tries", [50, pytest.param(500, marks=pytest.mark.slow)])


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


def npy(ids: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, ids)
    return content.getvalue()


def llmc(ids: np.ndarray, magic: int, version: int = 1, count: int | None = None) -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(ids) if count is None else count
    return header.tobytes() + ids.tobytes()


def file(name: str, content):
    return lambda folder, ids: (folder / name).write_bytes(content(ids))


FORMATS = {
    "nanogpt": (GPT2, file("train.bin", lambda ids: ids.astype("<u2").tobytes())),
    "llm.c": (GPT2, file("x_train_000001.bin", lambda ids: llmc(ids.astype("<u2"), 20240520))),
    "llm.c, llama 3": (1 << 20, file("train.bin", lambda ids: llmc(ids.astype("<u4"), 20240801, 7))),
    "npy uint16": (GPT2, file("edu_train_000000.npy", lambda ids: npy(ids.astype(np.uint16)))),
    "npy big-endian": (1 << 20, file("shard.npy", lambda ids: npy(ids.astype(">i4")))),
    "npy int64": (1 << 27, file("train.npy", lambda ids: npy(ids))),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, numbers = tmp_path_factory.mktemp("tokens"), itertools.count()

    def make() -> Path:
        folder = root / str(next(numbers))
        folder.mkdir()
        return folder

    return make


def opened(folder: Path) -> Dataset | None:
    """The data set, or None where it is refused in one line."""
    try:
        return open_dataset(folder)
    except UserError as error:
        if "\n" in str(error):
            raise AssertionError(str(error)) from error
        return None


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


@pytest.mark.parametrize("beside", [None, {"vocab_size": 65}, {"dtype": "uint16"}])
@pytest.mark.parametrize("kind", ["<u4", "<i8"])
def test_wider_ids_in_nanogpts_files_are_refused_unless_the_type_is_told(tmp_path, kind, beside):
    (tmp_path / "train.bin").write_bytes((TEXT % 65).astype(kind).tobytes())
    if beside:
        (tmp_path / "tokens.json").write_text(json.dumps(beside))
    if beside and "dtype" in beside:
        assert open_dataset(tmp_path).n_tokens == len(TEXT) * int(kind[2]) // 2
        return
    with pytest.raises(
        UserError, match=r"look like uint32, read as uint16; .* tokens\.json .*train\.uint32\.bin"
    ):
        open_dataset(tmp_path)
    assert not validate(tmp_path).valid


def test_ids_beyond_16_bits_in_nanogpts_files_are_refused(tmp_path):
    ids = np.where(np.arange(2000) % 9 == 0, 128_000, TEXT[:2000] % 50_000).astype("<u4")
    (tmp_path / "train.bin").write_bytes(ids.tobytes())
    with pytest.raises(UserError, match=r"train\.uint32\.bin"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("name", ["train.{}.bin", "x_train_000001.{}.bin"])
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_the_name_says_the_type_and_other_names_are_refused(tmp_path, name, dtype):
    (tmp_path / name.format(dtype)).write_bytes(TEXT.astype(dtype).tobytes())
    assert np.array_equal(open_dataset(tmp_path).store.read(0, 10_000), TEXT)
    (tmp_path / name.format(dtype)).rename(tmp_path / "x_train_000001.bin")
    with pytest.raises(
        UserError, match=r"type of its ids is unknown.*tokens\.json.*x_train_000001\.uint32\.bin"
    ):
        open_dataset(tmp_path)


REFUSED = {
    "big-endian uint16": (TEXT.astype(">u2").tobytes(), "token id"),
    "one byte too early": (b"x" + TEXT.astype("<u2").tobytes() + b"y", "token id"),
    "floats": (npy(TEXT.astype("f4")), "float32 of shape"),
    "negative": (npy(-TEXT), "is negative"),
    "truncated": (llmc(TEXT.astype("<u2"), 20240520)[:-2], "truncated: 13022 bytes; its header says 13024"),
    "too long": (llmc(TEXT.astype("<u2"), 20240520) + b"ab", "too long"),
    "negative count": (llmc(TEXT.astype("<u2"), 20240520, count=-1), "-1 tokens"),
    "no tokens": (llmc(TEXT[:0].astype("<u2"), 20240520), "0 tokens of uint16"),
    "ids beyond GPT-2's": (
        llmc(np.full(99, 50_400, "<u2"), 20240520),
        "token id 50400 at offset 0 >= vocab_size",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_with_the_reason(tmp_path, name):
    content, reason = REFUSED[name]
    kind = "npy" if content.startswith(b"\x93NUMPY") else "bin"
    (tmp_path / f"train.{kind}").write_bytes(content)
    with pytest.raises(UserError, match=rf"train\.{kind}: .*{reason}"):
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
    (["train-00000-of-00002.npy", "train-00001-of-00002.npy", "val.npy"], {"train": 2, "val": 1}, ""),
    (["a.npy", "b.npy"], {"train": 2}, ""),
    (["a.npy", "b.npy", "val.npy"], {"train": 2, "val": 1}, ""),
    (
        ["train.bin", "val.bin", "valid.bin"],
        "the split 'val' has 2 files from val.bin to valid.bin; it must",
        "",
    ),
    (["train.bin", "train.npy"], "the split 'train' has 2 files from train.bin to train.npy", ""),
    (
        ["train_1.bin", "train_3.bin"],
        "'train' has 2 files from train_1.bin to train_3.bin; .* without a gap",
        "",
    ),
]


@pytest.mark.parametrize(("names", "expected", "unread"), SPLITS, ids=lambda each: str(each)[:40])
def test_names_say_the_split_and_what_is_not_read_is_named(tmp_path, names, expected, unread, caplog):
    for number, name in enumerate(names):
        ids = np.roll(TEXT, number).astype("<u2")
        (tmp_path / name).write_bytes(npy(ids) if name.endswith(".npy") else ids.tobytes())
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


# ---- nanoGPT's meta.pkl ----

ALPHABET = "\n !abcé東"
META = {
    "vocab_size": len(ALPHABET),
    "itos": dict(enumerate(ALPHABET)),
    "stoi": {character: id_ for id_, character in enumerate(ALPHABET)},
}


def nanogpt(folder: Path, meta: bytes) -> Path:
    (folder / "train.bin").write_bytes((TEXT % 8).astype("<u2").tobytes())
    (folder / "meta.pkl").write_bytes(meta)
    return folder


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_characters_of_nanogpt_are_the_tokenizer(tmp_path, protocol):
    dataset = open_dataset(nanogpt(tmp_path, pickle.dumps(META, protocol)))
    text = "".join(ALPHABET[id_] for id_ in dataset.store.read(0, 500))
    assert (dataset.tokenizer_name, dataset.eos_id) == ("alphabet", None)
    assert dataset.tokenizer.decode(dataset.store.read(0, 500)) == text
    assert dataset.tokenizer.encode(text) == dataset.store.read(0, 500).tolist()
    dataset.tokenizer.save(tmp_path / "saved")
    saved = load_tokenizer(tmp_path / "saved")
    assert (saved.fingerprint, saved.encode("aé")) == (dataset.tokenizer.fingerprint, [3, 6])
    with pytest.raises(UserError, match=r"character 'x' .* is not one of the 8"):
        saved.encode("x")


class Attack:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        (Attack(), "it holds more than texts and integers"),
        ({**META, "more": Attack()}, "it holds more than texts and integers"),
        ({**META, "itos": dict(enumerate(["the", "a"]))}, "id 0 is 'the'; it must be a character"),
        ({**META, "itos": dict(enumerate("aab"))}, "3 ids for 2 characters"),
        ({**META, "vocab_size": 9}, "another than the number of characters"),
        ([META], "not read"),
        ({"vocab_size": "8"}, "no vocab_size"),
        ({"vocab_size": 3}, "token id [3-7] at offset .* >= vocab_size 3"),
        ({"itos": ["\ud800"]}, "it must be a character"),
    ],
)
def test_another_meta_is_refused_and_nothing_in_it_runs(tmp_path, meta, reason, capsys):
    with pytest.raises(UserError, match=reason):
        open_dataset(nanogpt(tmp_path, pickle.dumps(meta)))
    assert capsys.readouterr().out == ""


@TRIES
def test_any_bytes_as_meta_are_read_or_refused(folders, tries):
    sound = pickle.dumps(META)
    changed = st.tuples(st.integers(0, len(sound) - 1), st.binary(min_size=1, max_size=9)).map(
        lambda change: sound[: change[0]] + change[1] + sound[change[0] + len(change[1]) :]
    )

    @settings(max_examples=tries, deadline=None, derandomize=True, database=None)
    @given(changed | st.binary(max_size=60))
    def check(meta):
        dataset = opened(nanogpt(folders(), meta))
        assert dataset is None or dataset.max_id < dataset.vocab_size

    check()


def test_a_meta_of_a_size_alone_gives_the_vocabulary(tmp_path):
    dataset = open_dataset(nanogpt(tmp_path, pickle.dumps({"vocab_size": 70})))
    assert (dataset.vocab_size, dataset.tokenizer_name) == (128, "an unknown tokenizer")
    with pytest.raises(UserError, match="70 ids without their characters"):
        _ = dataset.tokenizer
