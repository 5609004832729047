"""What `--data` means: a folder, a data set's name, or a source that is prepared when it can be."""

from __future__ import annotations

import logging
import re
import shlex

import pytest

from danalab.data import open_dataset, prepare, resolve_dataset
from danalab.data.sources import SOURCES, StdlibSource
from danalab.data.sources.base import Source
from danalab.errors import UserError


@pytest.fixture
def small_stdlib(tmp_path, monkeypatch):
    root = tmp_path / "lib"
    root.mkdir()
    for number in range(20):
        (root / f"module_{number}.py").write_text(f"def f_{number}(x):\n    return x + {number}\n" * 20)
    monkeypatch.setattr(StdlibSource, "build", classmethod(lambda cls, *_: cls(root)))


def test_a_ready_source_is_prepared_once_below_the_folder_of_data_sets(small_stdlib, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path / "sets"))
    with caplog.at_level(logging.INFO):
        folder = resolve_dataset("stdlib", "bpe-300")
    assert folder == tmp_path / "sets" / "stdlib-bpe-300"
    assert open_dataset(folder).tokenizer.n_tokens == 300
    assert "preparing it now" in caplog.text
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
    with pytest.raises(UserError, match=r"danalab data prepare text --input PATH\.\.\. --tokenizer bpe-4096 --out"):
        resolve_dataset("text", datasets_dir=tmp_path)


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(UserError, match="no data set 'stdlb' \\(did you mean 'stdlib'\\?\\)"):
        resolve_dataset("stdlb", datasets_dir=tmp_path)
    with pytest.raises(UserError, match="no data set in this folder"):
        resolve_dataset(tmp_path)


def test_a_text_in_place_of_a_data_set_says_the_command(tmp_path):
    file = tmp_path / "my notes.txt"
    file.write_text("text")
    for wrong in (file, tmp_path):
        command = f"danalab data prepare text --input {shlex.quote(str(wrong))}"
        for use in (resolve_dataset, lambda path: prepare(str(path), "bytes", tmp_path / "out")):
            with pytest.raises(UserError, match=re.escape(command)):
                use(wrong)


def test_sources_are_classes_of_the_registry():
    assert all(issubclass(SOURCES.get(name), Source) for name in SOURCES)
