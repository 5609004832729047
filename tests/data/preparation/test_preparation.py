"""Shards hold the documents, whatever the number of processes, and a killed preparation ends with the same bytes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from danalab.data import open_dataset, prepare
from danalab.data.formats.shards import Manifest, ShardWriter
from danalab.data.preparation import pipeline as preparation_module
from danalab.data.preparation import shard_writer as writing_module
from danalab.data.preparation.holdout import SplitRule, split_documents
from danalab.data.sources import Source, TextSource
from danalab.data.tokenizers import train_bpe
from danalab.data.validation import validate
from danalab.errors import UserError


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _prepare(corpus: Path, out: Path, **settings) -> Path:
    defaults = {"tokenizer": "bpe-300", "inputs": [corpus], "workers": 1, "progress": False}
    if "val_documents" not in settings:
        defaults["val_fraction"] = 0.2
    return prepare("text", out=out, **{**defaults, **settings})


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(preparation_module, "_CHUNK_CHARACTERS", 1500)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-300"])
def test_detokenised_shards_give_back_the_documents(corpus, tmp_path, small_chunks, tokenizer):
    folder = _prepare(corpus, tmp_path / "out", tokenizer=tokenizer, shard_tokens=2000)
    expected = list(split_documents(TextSource([corpus]), SplitRule(0.2)))
    assert len(Manifest.read(folder).splits["train"]) > 2
    for split in ("train", "val"):
        dataset = open_dataset(folder, split)
        ids = dataset.store.read(0, dataset.n_tokens)
        assert ids[-1] == dataset.eos_id
        documents = np.split(ids, np.flatnonzero(ids == dataset.eos_id) + 1)[:-1]
        assert [dataset.tokenizer.decode(d[:-1]) for d in documents] == [
            t for s, t, _ in expected if s == split
        ]


def test_the_manifest_tells_tokens_documents_bytes_and_ids(corpus, tmp_path):
    folder = _prepare(corpus, tmp_path / "out")
    made = Manifest.read(folder)
    assert sum(e.documents for entries in made.splits.values() for e in entries) == 60
    assert sum(e.text_bytes for entries in made.splits.values() for e in entries) == sum(
        path.stat().st_size for path in corpus.iterdir()
    )
    for split, entries in made.splits.items():
        ids = open_dataset(folder, split).store.read(0, 10**9)
        assert (ids.min(), ids.max(), len(ids)) == (entries[0].min_id, entries[0].max_id, entries[0].tokens)
    assert validate(folder).valid


@pytest.fixture
def as_if_large(monkeypatch):
    monkeypatch.setattr(preparation_module, "_SMALL", 0)


def test_threads_and_processes_write_the_same_bytes_as_one(corpus, tmp_path, small_chunks, monkeypatch):
    one = _prepare(corpus, tmp_path / "one", shard_tokens=2000)
    threads = _prepare(corpus, tmp_path / "threads", shard_tokens=2000, workers=3)
    monkeypatch.setattr(preparation_module, "_SMALL", 0)
    processes = _prepare(corpus, tmp_path / "processes", shard_tokens=2000, workers=2)
    assert _content(one) == _content(threads) == _content(processes)


def test_preparing_again_is_no_work_and_other_settings_are_refused(corpus, tmp_path):
    folder = _prepare(corpus, tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert _prepare(corpus, folder) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    with pytest.raises(UserError, match="other text or other settings"):
        _prepare(corpus, folder, val_fraction=0.1)


# A preparation that kills itself, as `kill -9` would, when document number N is read; small chunks, so that each of
# them may end a shard or a journal entry.
_KILLED = """
import os, signal, sys
from danalab.data import prepare
from danalab.data.preparation import pipeline as preparation, shard_writer as writing
from danalab.data.formats.shards import ShardWriter
from danalab.data.sources import Source, TextSource
preparation._CHUNK_CHARACTERS, preparation._SMALL = 1500, 0
writing._JOURNAL_BYTES = int(sys.argv[4])
class Deadly(TextSource):
    def iter_part(self, side, number, skip=0):
        if number == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().iter_part(side, number, skip)
prepare(Deadly([sys.argv[1]]), "bytes", sys.argv[2], val_fraction=0.2, workers=int(sys.argv[5]), shard_tokens=3000,
        progress=False)
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("journal_bytes", "workers", "kills"),
    [
        pytest.param(10**9, 1, (25, 45, 59), marks=pytest.mark.slow),
        pytest.param(1, 1, (25, 45, 59), marks=pytest.mark.slow),
        (1, 2, (45,)),
    ],
)
def test_killed_again_and_again_it_ends_with_the_same_bytes(
    corpus, tmp_path, small_chunks, journal_bytes, workers, kills
):
    expected = _content(_prepare(corpus, tmp_path / "whole", tokenizer="bytes", shard_tokens=3000))
    out = tmp_path / "killed"
    for kill_at in (*kills, 10**6):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _KILLED,
                str(corpus),
                str(out),
                str(kill_at),
                str(journal_bytes),
                str(workers),
            ],
            capture_output=True,
            check=False,
        )
        assert done.returncode == (0 if kill_at == 10**6 else -9), done.stderr.decode()
        if kill_at == 45:
            assert json.loads((out / "journal.json").read_text())["place"][1] > 0
    assert _content(out) == expected


def test_a_kill_between_the_end_of_a_shard_and_the_journal_loses_nothing(
    corpus, tmp_path, small_chunks, monkeypatch
):
    expected = _content(_prepare(corpus, tmp_path / "whole", tokenizer="bytes", shard_tokens=3000))
    monkeypatch.setattr(writing_module, "_JOURNAL_BYTES", 1)
    real = writing_module.DatasetWriter._finish_shard

    def dies_after_the_rename(self, split):
        real(self, split)
        if split == "train":
            raise KeyboardInterrupt

    monkeypatch.setattr(writing_module.DatasetWriter, "_finish_shard", dies_after_the_rename)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        _prepare(corpus, out, tokenizer="bytes", shard_tokens=3000)
    assert (out / "train-00000.bin").exists()
    monkeypatch.setattr(writing_module.DatasetWriter, "_finish_shard", real)
    assert _content(_prepare(corpus, out, tokenizer="bytes", shard_tokens=3000)) == expected


def test_an_unfinished_preparation_of_other_text_is_started_anew(corpus, tmp_path):
    bad = corpus / "99.txt"
    bad.write_bytes(b"\xff")
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"99\.txt: not UTF-8 at byte 0"):
        _prepare(corpus, out)
    bad.write_text("repaired")
    assert _content(_prepare(corpus, out)).keys() >= {"manifest.json", "tokenizer.json"}
    assert (
        Manifest.read(out).splits["train"][0].documents + Manifest.read(out).splits["val"][0].documents == 61
    )


def test_bad_text_in_a_process_ends_in_the_same_error(corpus, tmp_path, small_chunks, as_if_large):
    (corpus / "30.jsonl").write_text('{"text": 3}\n')
    with pytest.raises(UserError, match=r"30\.jsonl, line 1"):
        _prepare(corpus, tmp_path / "out", tokenizer="bytes", workers=2)


def test_a_folder_with_other_files_is_left_alone(corpus, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "letter.doc").write_text("precious")
    with pytest.raises(UserError, match=r"not empty \(letter\.doc\)"):
        _prepare(corpus, out)
    assert (out / "letter.doc").read_text() == "precious"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"max_documents": 1}, "--max-documents is 1"),
        ({"max_tokens": 0}, "--max-tokens is 0"),
        ({"val_documents": 0}, "--val-documents is 0"),
        ({"val_documents": 3, "val_fraction": 0.1}, "give only one of them"),
        ({"val_fraction": 0.0}, "--val-fraction"),
        ({"val_fraction": 1.5}, "--val-fraction"),
        ({"shard_tokens": 0}, "--shard-tokens"),
        ({"workers": 0}, "--workers"),
        ({"tokenizer": "bpe-10"}, "at least 265"),
        ({"tokenizer": "gtp2"}, "did you mean 'gpt2'"),
    ],
)
def test_bad_settings_are_refused(corpus, tmp_path, given, reason):
    with pytest.raises(UserError, match=reason):
        _prepare(corpus, tmp_path / "out", **given)


def test_your_own_validation_files_are_the_validation_split(corpus, tmp_path):
    own = tmp_path / "own.txt"
    own.write_text("validate on this")
    folder = _prepare(corpus, tmp_path / "out", tokenizer="bytes", val_inputs=[own])
    val = open_dataset(folder, "val")
    assert val.tokenizer.decode(val.store.read(0, 99)) == "validate on this<|endoftext|>"


def test_on_a_full_disk_nothing_finished_is_lost(corpus, tmp_path, small_chunks, monkeypatch):
    expected = _content(_prepare(corpus, tmp_path / "whole", tokenizer="bytes", shard_tokens=3000))
    real, calls = ShardWriter.append, []

    def fills(self, ids):
        calls.append(len(ids))
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, ids)

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(ShardWriter, "append", fills)
        with pytest.raises(OSError, match="No space left on device"):
            _prepare(corpus, out, tokenizer="bytes", shard_tokens=3000)
    assert list(out.glob("train-*.bin"))
    assert _content(_prepare(corpus, out, tokenizer="bytes", shard_tokens=3000)) == expected


def test_finished_shards_are_not_removed_for_other_settings(corpus, tmp_path, small_chunks, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(
            writing_module.DatasetWriter, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            _prepare(corpus, out, tokenizer="bytes", shard_tokens=3000)
    with pytest.raises(UserError, match="unfinished data set of other text or other settings"):
        _prepare(corpus, out, tokenizer="bytes", shard_tokens=2000)
    assert list(out.glob("train-*.bin"))


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


class _Listed(Source):
    name, licence, summary = "listed", "none", "documents of a list"

    def __init__(self, documents):
        self.documents = documents

    def iter_documents(self):
        return iter(self.documents)

    def size_bytes(self):
        return None

    def identity(self):
        return repr(self.documents)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2, max_size=12, unique=True
    )
)
def test_any_unicode_comes_back_byte_by_byte(documents, tmp_path_factory):
    saved = tmp_path_factory.getbasetemp() / "bpe-unicode"
    if not saved.exists():
        train_bpe(["der alte Müller λ=3 水"] * 9, 275).save(saved)
    source = _Listed(documents)
    for tokenizer in ("bytes", saved):
        folder = tmp_path_factory.mktemp("set")
        try:
            prepare(source, tokenizer, folder, val_fraction=0.3, workers=1, progress=False)
        except UserError:
            return  # by chance all validate
        back = []
        for split in ("train", "val"):
            dataset = open_dataset(folder, split)
            ids = dataset.store.read(0, dataset.n_tokens)
            pieces = np.split(ids, np.flatnonzero(ids == dataset.eos_id) + 1)[:-1]
            back += [dataset.tokenizer.decode_bytes(piece[:-1]) for piece in pieces]
        assert sorted(back) == sorted(text.encode() for text in documents)


def test_a_process_that_dies_is_one_line(corpus, tmp_path, small_chunks, as_if_large, monkeypatch):
    monkeypatch.setattr("danalab.data.preparation.workers._begin", os._exit)  # ends each process
    with pytest.raises(UserError, match="a tokenising process died"):
        _prepare(corpus, tmp_path / "out", tokenizer="bytes", workers=2)


def test_documents_without_text_are_left_out_also_after_a_kill(tmp_path, small_chunks, monkeypatch, capsys):
    lines = [{"text": None if n % 7 == 3 else "" if n % 7 == 5 else f"document {n} " * 9} for n in range(200)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"text": null}')
    (tmp_path / "in" / "notes.html").write_text("no text")
    whole = _prepare(tmp_path / "in", tmp_path / "whole", tokenizer="bytes", shard_tokens=3000, progress=True)
    empty = 1 + sum(not line["text"] for line in lines)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "read 1 file; not read: 1 .html"
    assert (
        sum(entry.documents for entries in Manifest.read(whole).splits.values() for entry in entries)
        == 201 - empty
    )
    out = tmp_path / "out"
    for shards in (1, 3):
        with monkeypatch.context() as patched:
            finish, left = writing_module.DatasetWriter._finish_shard, [shards]

            def kill(self, split, finish=finish, left=left):
                if left[0] == 0:
                    raise KeyboardInterrupt
                left[0] -= 1
                finish(self, split)

            patched.setattr(writing_module.DatasetWriter, "_finish_shard", kill)
            with pytest.raises(KeyboardInterrupt):
                _prepare(tmp_path / "in", out, tokenizer="bytes", shard_tokens=3000)
    assert _content(_prepare(tmp_path / "in", out, tokenizer="bytes", shard_tokens=3000)) == _content(whole)
