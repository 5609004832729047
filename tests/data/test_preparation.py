"""Shards hold the documents, whatever the number of processes, and a killed preparation ends with the same bytes."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from danalab.data import open_dataset, prepare
from danalab.data import preparation as preparation_module
from danalab.data.formats.shards import Manifest
from danalab.data.sources import TRAIN, VAL, Source, TextSource
from danalab.data.tokenizers import train_bpe
from danalab.data.validation import validate
from danalab.errors import UserError


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _texts(source: Source, split: str, fraction: float) -> list[str]:
    """The documents of a split."""
    share = preparation_module._share(source, fraction)
    return [text for _, text in preparation_module._documents(source, split, share)]


def _interrupt(*_, **__):
    raise KeyboardInterrupt


def _prepare(corpus: Path, out: Path, **settings) -> Path:
    defaults = {"tokenizer": "bpe-300", "inputs": [corpus], "val_fraction": 0.2, "progress": False}
    return prepare("text", out=out, **{**defaults, **settings})


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(preparation_module, "_CHUNK_CHARACTERS", 1500)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-300"])
def test_detokenised_shards_give_back_the_documents(corpus, tmp_path, small_chunks, tokenizer):
    folder = _prepare(corpus, tmp_path / "out", tokenizer=tokenizer, shard_tokens=2000)
    source = TextSource([corpus])
    assert len(Manifest.read(folder).splits["train"]) > 2
    for split in ("train", "val"):
        dataset = open_dataset(folder, split)
        ids = dataset.store.read(0, dataset.n_tokens)
        assert ids[-1] == dataset.eos_id
        documents = np.split(ids, np.flatnonzero(ids == dataset.eos_id) + 1)[:-1]
        assert [dataset.tokenizer.decode(d[:-1]) for d in documents] == _texts(source, split, 0.2)


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


def test_any_number_of_cores_writes_the_same_bytes(corpus, tmp_path, small_chunks, monkeypatch):
    written = []
    for cores in (1, 3):
        monkeypatch.setattr(preparation_module, "available_cores", lambda cores=cores: cores)
        written.append(_content(_prepare(corpus, tmp_path / str(cores), shard_tokens=2000)))
    assert written[0] == written[1]


def test_preparing_again_is_no_work_and_other_settings_are_refused(corpus, tmp_path):
    folder = _prepare(corpus, tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert _prepare(corpus, folder) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    with pytest.raises(UserError, match="other text or other settings"):
        _prepare(corpus, folder, val_fraction=0.1)


# A preparation that kills itself, as `kill -9` would, when a file is read for a split; small chunks, so that each of
# them may end a shard.
_KILLED = """
import os, signal, sys
from danalab.data import prepare
from danalab.data import preparation
from danalab.data.sources import TextSource
preparation._CHUNK_CHARACTERS, preparation._AHEAD = 1500, 1
preparation.available_cores = lambda: 2
writing = []
class Deadly(TextSource):
    def iter_part(self, side, number, skip=0):
        if writing == [sys.argv[3]] and number == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().iter_part(side, number, skip)
write = preparation._write
def tells(folder, split, *more):
    writing[:] = [split]
    write(folder, split, *more)
preparation._write = tells
prepare(Deadly([sys.argv[1]]), "bytes", sys.argv[2], val_fraction=0.2, shard_tokens=3000, progress=False)
"""


@pytest.mark.sample(1)
def test_killed_again_and_again_it_ends_with_the_same_bytes(corpus, tmp_path, small_chunks):
    expected = _content(_prepare(corpus, tmp_path / "whole", tokenizer="bytes", shard_tokens=3000))
    out = tmp_path / "killed"
    for kill_at in (("train", 45), ("train", 59), ("val", 40), None):
        words = [str(corpus), str(out), *map(str, kill_at or ("none", 0))]
        done = subprocess.run([sys.executable, "-c", _KILLED, *words], capture_output=True, check=False)
        assert done.returncode == (-9 if kill_at else 0), done.stderr.decode()
        if kill_at:
            assert json.loads((out / "journal.json").read_text())["places"]["train"][0] > 0
    assert _content(out) == expected


def test_a_kill_between_the_end_of_a_shard_and_the_journal_loses_nothing(
    corpus, tmp_path, small_chunks, monkeypatch
):
    expected = _content(_prepare(corpus, tmp_path / "whole", tokenizer="bytes", shard_tokens=3000))
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(preparation_module, "fsync_path", _interrupt)  # after the rename
        with pytest.raises(KeyboardInterrupt):
            _prepare(corpus, out, tokenizer="bytes", shard_tokens=3000)
    assert (out / "train-00000.bin").exists()
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


def test_a_folder_with_other_files_is_left_alone(corpus, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "letter.doc").write_text("precious")
    with pytest.raises(UserError, match=r"not empty \(letter\.doc\)"):
        _prepare(corpus, out)
    assert [path.name for path in out.iterdir()] == ["letter.doc"]
    assert (out / "letter.doc").read_text() == "precious"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
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
    real, calls = preparation_module._write_shard, []

    def fills(path, chunks, tokenizer):
        calls.append(path)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, chunks, tokenizer)

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(preparation_module, "_write_shard", fills)
        with pytest.raises(OSError, match="No space left on device"):
            _prepare(corpus, out, tokenizer="bytes", shard_tokens=3000)
    assert list(out.glob("train-*.bin"))
    assert _content(_prepare(corpus, out, tokenizer="bytes", shard_tokens=3000)) == expected


def test_finished_shards_are_not_removed_for_other_settings(corpus, tmp_path, small_chunks, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(preparation_module, "Manifest", _interrupt)
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
            prepare(source, tokenizer, folder, val_fraction=0.3, progress=False)
        except UserError:
            return  # by chance all validate
        back = []
        for split in ("train", "val"):
            dataset = open_dataset(folder, split)
            ids = dataset.store.read(0, dataset.n_tokens)
            pieces = np.split(ids, np.flatnonzero(ids == dataset.eos_id) + 1)[:-1]
            back += [dataset.tokenizer.decode_bytes(piece[:-1]) for piece in pieces]
        assert sorted(back) == sorted(text.encode() for text in documents)


def test_documents_without_text_are_left_out_also_after_a_kill(tmp_path, small_chunks, monkeypatch, capsys):
    lines = [{"text": None if n % 7 == 3 else "" if n % 7 == 5 else f"document {n} " * 9} for n in range(200)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"text": null}')
    (tmp_path / "in" / "notes.html").write_text("no text")
    whole = _prepare(tmp_path / "in", tmp_path / "whole", tokenizer="bytes", shard_tokens=3000, progress=True)
    empty = 1 + sum(not line["text"] for line in lines)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "read 1 file(s); not read: 1 .html"
    assert (
        sum(entry.documents for entries in Manifest.read(whole).splits.values() for entry in entries)
        == 201 - empty
    )
    out = tmp_path / "out"
    for shards in (1, 3):
        with monkeypatch.context() as patched:
            write, left = preparation_module._write_shard, [shards]

            def kill(*shard, write=write, left=left):
                if left[0] == 0:
                    raise KeyboardInterrupt
                left[0] -= 1
                return write(*shard)

            patched.setattr(preparation_module, "_write_shard", kill)
            with pytest.raises(KeyboardInterrupt):
                _prepare(tmp_path / "in", out, tokenizer="bytes", shard_tokens=3000)
    assert _content(_prepare(tmp_path / "in", out, tokenizer="bytes", shard_tokens=3000)) == _content(whole)


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.text(min_size=1, max_size=9), min_size=2, unique=True), fraction=st.floats(0.001, 0.3)
)
def test_no_document_is_lost_repeated_or_on_both_sides(texts, fraction):
    train, val = (_texts(_Listed(texts), split, fraction) for split in (TRAIN, VAL))
    assert sorted(train + val) == sorted(texts)
    assert val
    assert [text for text in texts if text in set(train)] == train


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text(min_size=1, max_size=9), min_size=30, max_size=60, unique=True))
def test_the_choice_does_not_depend_on_the_order_of_the_documents(texts):
    assert set(_texts(_Listed(texts), VAL, 0.5)) == set(_texts(_Listed(texts[::-1]), VAL, 0.5))


def test_equal_documents_are_on_the_same_side():
    source = _Listed([f"document {i % 50}" for i in range(500)])
    assert not set(_texts(source, TRAIN, 0.2)) & set(_texts(source, VAL, 0.2))


def test_where_the_hash_chooses_none_one_document_and_its_copies_validate():
    source = _Listed(["a", "b", "c"] * 2)
    assert sorted(_texts(source, TRAIN, 1e-9) + _texts(source, VAL, 1e-9)) == sorted("abcabc")
    assert len(_texts(source, VAL, 1e-9)) == 2


def test_the_fraction_is_kept_on_average():
    assert 320 < len(_texts(_Listed([str(i) for i in range(20_000)]), VAL, 0.02)) < 480


@pytest.mark.parametrize("documents", [["only one"], [], ["", ""], ["same", "same"]])
def test_too_few_documents_are_refused(documents, tmp_path):
    with pytest.raises(UserError, match="source 'listed' has no document to"):
        prepare(_Listed(documents), "bytes", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_a_terminal_a_line_is_written_every_minute(tmp_path, capsys, monkeypatch):
    clock = iter(range(0, 10**6, 40))
    monkeypatch.setattr(preparation_module, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr(preparation_module, "_CHUNK_DOCUMENTS", 2)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in the kernel of a notebook, which cannot redraw a line
    prepare(_Listed([f"document number {n}" for n in range(20)]), "bytes", tmp_path / "out", max_tokens=200)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert lines[0] == "tokenising listed: 72 tokens, 1 tokens/s, 36.0%, about 5 min left"
    assert lines[-1].startswith("prepared listed with bytes: ")
