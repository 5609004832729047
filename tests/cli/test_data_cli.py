"""`danalab data` and `danalab tokenizer`: results on standard output, errors in one line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

from danalab.cli.app import main
from danalab.data.open import find_dataset


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.md").write_text(
            f"# Heading {number}\n\nSome words about {number} more things.\n" * 5
        )
    return folder


def _json(capsys, *arguments: str) -> dict:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_prepare_then_info(corpus, tmp_path, capsys):
    out = str(tmp_path / "set")
    made = _json(
        capsys, "data", "prepare", "text", "--input", str(corpus), "--tokenizer", "bpe-280", "--out", out
    )
    assert made["vocab_size"] == 320
    assert sum(split["documents"] for split in made["splits"].values()) == 20
    assert _json(capsys, "data", "info", out) == made
    assert _json(capsys, "data", "validate", out)["valid"]
    assert main(["data", "info", out]) == 0
    text = capsys.readouterr().out
    assert f"{made['splits']['train']['tokens']:,} tokens" in text
    assert "bpe-280" in text


def test_texts_by_path_are_prepared_where_training_looks_for_them(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path / "sets"))
    made = _json(capsys, "data", "prepare", str(corpus), "--tokenizer", "bytes")
    assert sum(split["documents"] for split in made["splits"].values()) == 20
    assert find_dataset(corpus, "bytes") in (tmp_path / "sets").iterdir()


def test_train_then_evaluate_a_tokenizer(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        "tiktoken.load.read_file", lambda address: (_ for _ in ()).throw(ConnectionError(address))
    )
    out = str(tmp_path / "tok")
    made = _json(
        capsys, "data", "train-tokenizer", "--vocab-size", "280", "--input", str(corpus), "--out", out
    )
    assert made["name"] == "bpe-280"
    measured = _json(capsys, "data", "eval-tokenizer", out, "--input", str(corpus / "3.md"))
    assert measured["texts"]["english"]["bytes_per_token"] > 1
    assert measured["texts"][str(corpus / "3.md")]["gpt2_bytes_per_token"] is None
    assert main(["data", "eval-tokenizer", out]) == 0
    printed = capsys.readouterr()
    assert "english" in printed.out
    assert "fetch-gpt2" in printed.err
    assert main(["data", "train-tokenizer", "--vocab-size", "280", "--input", str(corpus), "--out", out]) == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["data", "prepare", "stdlb"], "did you mean 'stdlib'"),
        (["data", "prepare", "book.txt"], "unknown file, folder or data source 'book.txt'"),
        (["data", "prepare", "text"], "--input PATH"),
        (["data", "prepare", "text", "--input", "/absent"], "no such file"),
        (["data", "info", "/absent"], "no such folder"),
        (["data", "eval-tokenizer", "gtp2"], "did you mean 'gpt2'"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments, reason, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_fetching_gpt2_from_a_folder_without_it_is_refused(tmp_path, capsys):
    from danalab.cli.data import FetchGpt2Flags, fetch_gpt2
    from danalab.errors import UserError

    with pytest.raises(UserError, match=r"no vocab\.bpe"):
        fetch_gpt2(FetchGpt2Flags(from_=tmp_path))


def test_fetching_gpt2_without_a_folder_downloads_it(tmp_path, capsys, monkeypatch):
    from danalab.data.tokenizers import gpt2

    tables = {"vocab.bpe": b"merges", "encoder.json": b"{}"}

    def download() -> None:
        for name, content in tables.items():
            (tmp_path / gpt2.cached_name(name)).write_bytes(content)

    monkeypatch.setattr(gpt2, "TABLES", {k: hashlib.sha256(v).hexdigest() for k, v in tables.items()})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpt2.Gpt2Tokenizer, "from_cache", download)
    assert _json(capsys, "data", "fetch-gpt2") == {"cache": str(tmp_path)}


def test_names_that_are_no_text_are_printed(corpus, tmp_path):
    out = os.fsencode(tmp_path) + b"/\xff"
    command = [
        sys.executable,
        "-m",
        "danalab",
        "data",
        "prepare",
        "text",
        "--tokenizer",
        "bytes",
        "--input",
        str(corpus),
    ]
    done = subprocess.run(
        [*command, "--out", out],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        check=True,
    )
    assert done.stdout.strip().endswith(b"/\\udcff")
