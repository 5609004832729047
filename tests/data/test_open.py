"""What `--data` means: a folder, a data set's name, or a source that is prepared when it can be."""

from __future__ import annotations

import logging

import pytest

from danalab.data import open_dataset, prepare, resolve_dataset, vocabulary_of
from danalab.data.open import find_dataset
from danalab.data.sources import StdlibSource
from danalab.errors import UserError


@pytest.fixture
def small_stdlib(tmp_path, monkeypatch):
    root = tmp_path / "lib"
    root.mkdir()
    for number in range(20):
        (root / f"module_{number}.py").write_text(f"def f_{number}(x):\n    return x + {number}\n" * 20)
    monkeypatch.setattr(StdlibSource, "build", classmethod(lambda cls, *_: cls(root)))


def test_a_ready_source_is_prepared_once_below_the_folder_of_data_sets(
    small_stdlib, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path / "sets"))
    with caplog.at_level(logging.INFO):
        folder = resolve_dataset("stdlib", "bpe-300")
    assert folder == tmp_path / "sets" / "stdlib-bpe-300"
    assert open_dataset(folder).tokenizer.n_tokens == 300
    assert "preparing stdlib with the tokenizer bpe-300" in caplog.text
    time = (folder / "manifest.json").stat().st_mtime_ns
    assert resolve_dataset("stdlib", "bpe-300") == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == time


def test_folders_are_taken_as_they_are_or_below_the_folder_of_data_sets(corpus, tmp_path):
    folder = prepare("text", "bytes", tmp_path / "sets" / "mine", inputs=[corpus], progress=False)
    assert resolve_dataset(folder) == folder
    assert resolve_dataset("mine", datasets_dir=tmp_path / "sets") == folder
    assert resolve_dataset(folder, "bytes") == folder
    assert resolve_dataset(folder, folder) == folder
    with pytest.raises(UserError, match="written with the tokenizer bytes, not gpt2"):
        resolve_dataset(folder, "gpt2")


def test_a_tokenizer_by_path_names_the_folder_by_its_fingerprint(small_stdlib, corpus, tmp_path):
    mine = prepare("text", "bpe-300", tmp_path / "mine", inputs=[corpus], progress=False)
    folder = resolve_dataset("stdlib", mine, datasets_dir=tmp_path)
    assert folder.name.startswith("stdlib-bpe-300-")
    assert open_dataset(folder).tokenizer.fingerprint == open_dataset(mine).tokenizer.fingerprint
    assert resolve_dataset("stdlib", mine, datasets_dir=tmp_path) == folder


def test_a_source_that_needs_files_says_the_command(tmp_path):
    with pytest.raises(
        UserError, match=r"danalab data prepare text --input PATH\.\.\. --tokenizer bpe-4096 --out"
    ):
        resolve_dataset("text", datasets_dir=tmp_path)


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(
        UserError, match="unknown file, folder or data source 'stdlb' \\(did you mean 'stdlib'\\?\\)"
    ):
        resolve_dataset("stdlb", datasets_dir=tmp_path)
    with pytest.raises(UserError, match=r"neither a data set .* nor text"):
        resolve_dataset(tmp_path)


def test_texts_are_prepared_when_they_are_first_used(corpus, tmp_path, caplog):
    file = tmp_path / "one.txt"
    file.write_text("\n".join(path.read_text() for path in sorted(corpus.iterdir())))
    for size, tokenizer in (
        (9_000, "bytes"),
        (90_000, "bpe-512"),
        (900_000, "bpe-1024"),
        (9_000_000, "bpe-4096"),
    ):
        (tmp_path / "sized.txt").write_text("a" * size)
        assert find_dataset(tmp_path / "sized.txt").tokenizer == tokenizer
    for place in (corpus, file):
        folder = resolve_dataset(place, "bytes", tmp_path / "sets")
        assert f"preparing {place} with the tokenizer bytes: {folder}" in caplog.text
        assert resolve_dataset(place, "bytes", tmp_path / "sets") == folder
        assert vocabulary_of(place, "bytes").vocab_size == 320
    before = resolve_dataset(file, "bytes", tmp_path / "sets")
    file.write_text(file.read_text() + "more")
    assert resolve_dataset(file, "bytes", tmp_path / "sets") != before


def test_names_of_text_files_say_the_split(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(f"{name} " * 50)
    folder = resolve_dataset(tmp_path, "bytes", tmp_path / "sets")
    assert [open_dataset(folder, split).n_tokens for split in ("train", "val")] == [301, 301]
