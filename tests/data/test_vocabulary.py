"""A run is planned without preparing its data, and the plan is that of the run."""

from __future__ import annotations

import pytest

from danalab.cli.app import main
from danalab.data import open_data, preparation, prepare, vocabulary_of
from danalab.data.sources import StdlibSource
from danalab.errors import UserError

FIELDS = ("name", "tokenizer_name", "vocab_size", "least_vocab_size", "eos_id", "sequence_length")


@pytest.fixture
def nothing_prepared(tmp_path, monkeypatch):
    """An empty folder to work in, where preparing fails."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DATASETS_DIR", raising=False)

    def refused(*_, **__):
        raise AssertionError("data are being prepared")

    monkeypatch.setattr(preparation, "prepare", refused)
    return folder


@pytest.mark.parametrize("tokenizer", ["bpe-300", "bytes", "characters"])
def test_what_is_said_of_data_that_are_not_there_is_what_is_made(tokenizer, tmp_path, monkeypatch):
    root = tmp_path / "lib"
    root.mkdir()
    for number in range(20):
        (root / f"module_{number}.py").write_text(f"def f_{number}(x):\n    return x + {number}\n" * 20)
    monkeypatch.setattr(StdlibSource, "build", classmethod(lambda cls, *_: cls(root)))
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path / "sets"))
    said = vocabulary_of("stdlib", tokenizer)
    assert not (tmp_path / "sets").exists()
    made = open_data("stdlib", tokenizer)
    assert [getattr(said, name) for name in FIELDS] == [getattr(made, name) for name in FIELDS]
    there = vocabulary_of("stdlib", tokenizer)
    assert [getattr(there, name) for name in FIELDS] == [getattr(made, name) for name in FIELDS]


def test_of_gpt2_it_is_known_without_its_tables(nothing_prepared, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(nothing_prepared / "tables"))
    words = vocabulary_of("stdlib", "gpt2")
    assert (words.vocab_size, words.eos_id) == (50304, 50256)


def test_of_a_corpus_that_only_data_prepare_fetches_it_is_known_too(nothing_prepared):
    words = vocabulary_of("fineweb-100bt")
    assert (words.tokenizer_name, words.vocab_size) == ("gpt2", 50304)


def test_a_mixture_may_have_parts_that_are_not_there(nothing_prepared, corpus, tmp_path):
    mine = prepare("text", "bytes", tmp_path / "mine", inputs=[corpus], progress=False)
    words = vocabulary_of(f"stdlib:1,{mine}:2", "bytes")
    assert (words.name, words.tokenizer_name) == ("stdlib-bytes+mine", "bytes")
    with pytest.raises(UserError, match="a mixture needs one tokenizer"):
        vocabulary_of(f"{mine}:2,stdlib:1")


@pytest.mark.parametrize("tokenizer", ["bpe-100", "gpt3", "nowhere/tokenizer.json"])
def test_what_could_not_be_prepared_is_refused(tokenizer, nothing_prepared):
    with pytest.raises(UserError, match=r"at least 265|no tokenizer"):
        vocabulary_of("stdlib", tokenizer)


@pytest.mark.parametrize(
    "command",
    [
        "train --heads 3 --print-config",
        "train --heads 3 --tokenizer gpt2 --nproc 2 --print-config",
        "sweep --grid opt=adamw,adana --fixed heads=3 --dry-run",
    ],
)
def test_what_only_shows_runs_prepares_nothing_and_writes_nothing(command, nothing_prepared, capsys):
    assert main(command.split()) == 0, capsys.readouterr().err
    assert list(nothing_prepared.rglob("*")) == []
