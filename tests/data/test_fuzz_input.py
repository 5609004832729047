"""Random folders, tokenizers and texts through the command line: documented exit codes, no traceback, no hang."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from danalab.cli.app import main
from danalab.data import open_data, prepare
from danalab.data.formats.shards import checksum_of
from danalab.data.tokenizers import train_bpe
from danalab.errors import UserError

TRIES = [25, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
NUMBERS = st.sampled_from(
    [0, 1, -1, 2, 255, 2**31, 2**32, 2**63, 10**400, 0.5, -0.0, float("nan"), float("inf"), 1e300]
)
WORDS = st.sampled_from(
    ["", "a", "train", "val", "../x", "/nowhere/", "\0", "\ud800", "é" * 300, "gpt2", "bytes", "1", "²", "- x"]
)
LEAVES = st.one_of(NUMBERS, WORDS, st.booleans(), st.none(), st.text(max_size=5))
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty name is the present folder: what is written there must not be this repository."""
    monkeypatch.chdir(tmp_path)


def run(*arguments: object) -> None:
    """Run `danalab` as a user would; fails on anything but one line and a documented exit code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
    assert code in (0, 1, 2), (arguments, code)
    assert "Traceback" not in err.getvalue()


def fuzz(tries: int, **strategies: st.SearchStrategy):
    """Run a function on `tries` examples; always the same ones, unless there are many."""

    def decorate(work) -> None:
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
        bounded = settings(
            max_examples=tries, deadline=None, derandomize=tries < 100, database=None, suppress_health_check=checks
        )
        bounded(given(**strategies)(work))()

    return decorate


def edited(content: Any, path: list[int], value: Any) -> Any:
    """`content` with the value at a random place replaced."""
    if not path or not isinstance(content, dict | list) or not content:
        return value
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = keys[path[0] % len(keys)]
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[key] = edited(content[key], path[1:], value)
    return copy


EDITS = st.lists(st.tuples(st.lists(st.integers(0, 300), max_size=5), JSON), max_size=3)


def dumped(content: Any, edits: list[tuple[list[int], Any]]) -> str:
    for path, value in edits:
        content = edited(content, path, value)
    return json.dumps(content)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Numbered empty folders."""
    root = tmp_path_factory.mktemp("fuzz")

    def make() -> Path:
        folder = root / str(next(numbers))
        folder.mkdir()
        return folder

    numbers = itertools.count()
    return make


@pytest.fixture(autouse=True)
def _fast(monkeypatch, tmp_path):
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("tiktoken.load.read_file", lambda address: (_ for _ in ()).throw(ConnectionError(address)))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "no-tables"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> dict[str, Any]:
    """The files of a valid data set and of a valid tokenizer, as JSON."""
    root = tmp_path_factory.mktemp("valid")
    for number in range(6):
        (root / f"{number}.txt").write_text(f"{number} some text\n" * 9)
    folder = prepare("text", "bytes", root / "set", inputs=[root], workers=1, progress=False)
    read = {name: json.loads((folder / name).read_text()) for name in ("manifest.json", "tokenizer_config.json")}
    tokenizer = json.loads(train_bpe(["some text"] * 3, 266).to_json())
    return {**read, "tokenizer.json": tokenizer, "shards": {p.name: p.read_bytes() for p in folder.glob("*.bin")}}


def write_array(path: Path, array: np.ndarray) -> None:
    if path.suffix == ".pt":
        torch.save(torch.from_numpy(array), path)
    elif path.suffix == ".npz":
        np.savez(path, ids=array)
    else:
        with open(path, "wb") as file:
            np.save(file, array)


DTYPES = st.sampled_from(["uint8", "int16", "int64", "float32", "bool"])
ARRAYS = st.builds(
    lambda shape, dtype, value: np.full(shape, value).astype(dtype),
    st.lists(st.integers(0, 5), max_size=3), DTYPES, st.integers(-3, 300),
)  # fmt: skip
FILES = st.dictionaries(
    st.sampled_from(
        ["train.bin", "val.bin", "train_00.bin", "train_3.bin", "checksums.json", "download.json", "split.json",
         "manifest.json", "tokenizer.json", "tokenizer_config.json", "a.npy", "a.npy.rows", "b.npz", "c.pt",
         "train/a.npy", "train/a.npy.rows", "val/b.npy", "journal.json", "valid.bin", "x.bin", "x.idx", "train.npy",
         "meta.pkl", "tokens.json"]
    ),
    st.one_of(JSON, st.binary(max_size=40), ARRAYS, st.sampled_from(["<pipe>", "<link>", "<folder>", "<empty>"])),
    min_size=1, max_size=4,
)  # fmt: skip


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, np.ndarray):
        write_array(path, content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "<pipe>":
        os.mkfifo(path)
    elif content == "<link>":
        path.symlink_to("gone")
    elif content == "<folder>":
        path.mkdir()
    else:
        path.write_text("" if content == "<empty>" else json.dumps(content))


def read_everything(folder: Path) -> None:
    run("data", "info", folder, "--json")
    run("data", "validate", folder, "--json")
    for split in ("train", "val"):
        with contextlib.suppress(UserError):
            dataset = open_data(folder, split=split)
            _ = dataset.batches(seed=0, global_batch=1, seq_len=2)[0]
            _ = dataset.token_bytes


@pytest.mark.parametrize("tries", TRIES)
def test_any_folder_of_files_is_read_or_refused(folders, tries):
    @fuzz(tries, files=FILES)
    def _(files):
        folder = folders()
        for name, content in files.items():
            write(folder / name, content)
        read_everything(folder)
        run("data", "split", folder, "--output-path", folder.with_name(f"{folder.name}-split"), "--by", "sequence")
        run("data", "validate", folder, "--record", "--vocab-size", 9)


@pytest.mark.parametrize("tries", TRIES)
def test_any_change_of_a_manifest_or_a_tokenizer_is_read_or_refused(folders, valid, tries):
    @fuzz(tries, name=st.sampled_from(["manifest.json", "tokenizer.json", "tokenizer_config.json"]), edits=EDITS)
    def _(name, edits):
        folder = folders()
        for shard, content in valid["shards"].items():
            (folder / shard).write_bytes(content)
        for other in ("manifest.json", "tokenizer.json", "tokenizer_config.json"):
            text = dumped(valid[other], edits if other == name else [])
            content = json.loads(text)
            if other == "manifest.json" and isinstance(content, dict):
                content.pop("checksum", None)
                text = json.dumps({**content, "checksum": checksum_of(content)})
            (folder / other).write_text(text)
        read_everything(folder)


@pytest.mark.parametrize("tries", TRIES)
def test_any_tokenizer_is_used_or_refused(folders, valid, tries):
    @fuzz(tries, edits=EDITS, texts=st.lists(st.text(max_size=20), min_size=1, max_size=4))
    def _(edits, texts):
        folder = folders()
        (folder / "tokenizer.json").write_text(dumped(valid["tokenizer.json"], edits))
        (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        run("data", "eval-tokenizer", folder, "--json")
        run("data", "prepare", "text", "--input", folder / "in.jsonl", "--tokenizer", folder, "--out", folder / "out",
            "--workers", 1)  # fmt: skip


LINES = st.lists(st.one_of(JSON, st.builds(lambda text: {"text": text}, st.none() | st.text(max_size=20))), max_size=6)
CONTENT = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(str.encode),
    LINES.map(lambda lines: "\n".join(map(json.dumps, lines)).encode()),
    LINES.map(lambda lines: json.dumps(lines, indent=1).encode("utf-8-sig")),
    st.binary(max_size=60).map(gzip.compress),
)
FLAGS = st.dictionaries(
    st.sampled_from(["--val-fraction", "--val-documents", "--max-documents", "--max-tokens", "--shard-tokens"]),
    NUMBERS | WORDS, max_size=2,
)  # fmt: skip
NAMES = st.sampled_from(
    ["a.txt", "b.md", "c.jsonl", "d.txt.gz", "e.jsonl.gz", "f.parquet", "g.txt.zst", ".h.txt", "i.json", "j.ndjson"]
)


@pytest.mark.parametrize("tries", TRIES)
def test_any_text_and_settings_are_prepared_or_refused(folders, tries):
    tokenizer = st.sampled_from(["bytes", "characters", "bpe-300"]) | WORDS | st.builds("bpe-{}".format, WORDS)

    @fuzz(tries, files=st.dictionaries(NAMES, CONTENT, max_size=4), flags=FLAGS, tokenizer=tokenizer)
    def _(files, flags, tokenizer):
        folder = folders()
        (folder / "in").mkdir()
        for name, content in files.items():
            (folder / "in" / name).write_bytes(content)
        given = [f"{name}={value}" for name, value in flags.items()]
        run("data", "prepare", "text", "--input", folder / "in", f"--tokenizer={tokenizer}", "--out", folder / "out",
            "--workers", 1, *given)  # fmt: skip
        if (folder / "out").is_dir():
            read_everything(folder / "out")
        size = flags.get("--max-tokens", 300)
        run("data", "train-tokenizer", f"--vocab-size={size}", "--input", folder / "in", "--out", folder / "tok",
            f"--max-mb={flags.get('--val-fraction', 1)}")  # fmt: skip


@pytest.mark.parametrize("tries", TRIES)
def test_any_argument_of_data_is_opened_or_refused(folders, tries):
    @fuzz(tries, content=JSON, names=st.lists(WORDS, max_size=3), weights=st.lists(NUMBERS | WORDS, max_size=3))
    def _(content, names, weights):
        folder = folders()
        (folder / "mix.yaml").write_text(json.dumps(content))
        mixture = ",".join(f"{name}:{weight}" for name, weight in zip(names, weights, strict=False))
        for data in (folder / "mix.yaml", mixture):
            with contextlib.suppress(UserError):
                open_data(str(data))
        for verb in ("info", "validate"):
            run("data", verb, f"./{mixture}")
