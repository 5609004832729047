"""Corpora of the hub: read through the real client from a hub on this machine, or from a local copy, to equal bytes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.data.fake_hub import COMMIT, serve

from danalab.cli.app import main
from danalab.data import open_dataset, prepare, resolve_dataset
from danalab.data import preparation as preparation_module
from danalab.data.formats.shards import Manifest
from danalab.data.open import describe
from danalab.data.sources import SOURCES, TRAIN, VAL, make_source, walk
from danalab.data.sources import hub as corpora
from danalab.data.sources.hub import HubSource, articles
from danalab.errors import UserError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub of these tests is on this machine; tests of other parts may have told the client to stay offline."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def _rows(name: str, n: int) -> list[str]:
    return [f"{name} {i}: the boat drifts, λ = {i * i}, 水\n" * (1 + i % 3) for i in range(n)]


def _example(pattern: str, number: int) -> str:
    """A file name that matches a pattern."""
    return pattern.replace("*", f"{number:03d}")


def lay_out(source: type[HubSource], root: Path, files: int = 2, rows: int = 40) -> Path:
    """A small repository of the source's own shape: its paths, formats and field."""
    for side, patterns in ((TRAIN, source.train), (VAL, source.validation)):
        for pattern in patterns:
            for number in range(files):
                path = root / _example(pattern, number)
                path.parent.mkdir(parents=True, exist_ok=True)
                texts = _rows(f"{source.name} {side} {pattern} {number}", rows)
                if source.default_tokenizer == "characters":
                    texts = [text.encode("ascii", "ignore").decode() for text in texts]
                if source.name == "wikitext":
                    texts[0] = f" = Title {number} = \n"
                    texts[rows // 2] = " = Another = \n"
                lines = "".join(
                    json.dumps({source.field: text, "meta": {}}) + "\n" for text in texts
                ).encode()
                if path.suffix == ".parquet":
                    parquet.write_table(
                        pa.table({source.field: texts, "id": range(rows)}), path, row_group_size=7
                    )
                elif path.suffix == ".gz":
                    path.write_bytes(gzip.compress(lines, mtime=0))
                elif path.suffix == ".zst":
                    path.write_bytes(pa.compress(lines, "zstd", asbytes=True))
                else:
                    path.write_bytes(lines)
    (root / "README.md").write_text("not data")
    return root


CORPORA = [source.name for source in corpora.CORPORA]
FINEWEB = SOURCES["fineweb-10bt"]


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.bin")}


@pytest.fixture
def fineweb(tmp_path) -> Path:
    return lay_out(FINEWEB, tmp_path / "repo")


@pytest.fixture
def hub(fineweb, monkeypatch):
    with serve(FINEWEB.repo, fineweb) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(fineweb.parent / "cache"))
        monkeypatch.setattr("danalab.data.sources.hub._PAUSE_SECONDS", 0.0)
        yield served


@pytest.mark.parametrize("name", CORPORA)
def test_every_corpus_is_prepared_from_files_of_its_own_shape(name, tmp_path):
    source = SOURCES[name]
    root = lay_out(source, tmp_path / "repo")
    own = bool(source.validation)
    tokenizer = "characters" if source.default_tokenizer == "characters" else "bytes"
    settings = {} if own else {"val_fraction": 0.2}
    folder = prepare(name, tokenizer, tmp_path / "out", inputs=[root], progress=False, **settings)
    written = {}
    for split in ("train", "val"):
        dataset = open_dataset(folder, split)
        text = dataset.tokenizer.decode(dataset.store.read(0, dataset.n_tokens))
        written[split] = text.split("<|endoftext|>")[:-1]
    made = make_source(name, [root])
    every = list(made.iter_documents())
    assert not set(written["train"]) & set(written["val"])
    if own:
        assert written["train"] == every
        assert written["val"] == [text for _, text in walk(made, VAL)]
    else:
        assert sorted(written["train"] + written["val"]) == sorted(every)
    about = Manifest.read(folder).source
    assert (about["name"], about["licence"]) == (name, source.licence)


def test_the_hub_and_a_local_copy_give_the_same_shards(hub, fineweb, tmp_path):
    settings = {"tokenizer": "bytes", "val_fraction": 0.2, "progress": False}
    far = prepare("fineweb-10bt", out=tmp_path / "far", **settings)
    near = prepare("fineweb-10bt", out=tmp_path / "near", inputs=[fineweb], **settings)
    assert _content(far) == _content(near)
    assert Manifest.read(far).source["commit"] == COMMIT


def test_a_broken_connection_loses_and_repeats_nothing(hub, fineweb, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None, raising=False)
    settings = {"tokenizer": "bytes", "val_fraction": 0.2, "progress": False}
    expected = _content(prepare("fineweb-10bt", out=tmp_path / "near", inputs=[fineweb], **settings))
    hub.failures = 8
    assert _content(prepare("fineweb-10bt", out=tmp_path / "far", **settings)) == expected
    assert hub.failures == 0


def test_without_a_network_the_way_out_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("danalab.data.sources.hub._PAUSE_SECONDS", 0.0)
    with pytest.raises(UserError, match=r"cannot be reached .* local copy with --input"):
        prepare("fineweb-100bt", "bytes", tmp_path / "out")


def test_a_download_goes_on_where_it_was_stopped(hub, fineweb, tmp_path):
    copy = tmp_path / "copy"
    FINEWEB().download(copy)
    files = sorted(copy.rglob("*.parquet"))
    assert [file.read_bytes() for file in files] == [
        p.read_bytes() for p in sorted(fineweb.rglob("*.parquet"))
    ]
    files[0].unlink()
    hub.served.clear()
    FINEWEB().download(copy)
    assert set(hub.served) == {files[0].relative_to(copy).as_posix()}


def test_an_unknown_repository_is_one_line(hub, monkeypatch):
    monkeypatch.setattr(FINEWEB, "repo", "nobody/nothing")
    with pytest.raises(UserError, match="nobody/nothing: not on the hub"):
        make_source("fineweb-10bt").pin({})


# Killed as `kill -9` would, when row number N of the second file is read to be written.
_KILLED = """
import os, signal, sys
from danalab.data import prepare
from danalab.data import preparation
from danalab.data.sources import SOURCES
from danalab.data.sources import text
preparation._CHUNK_CHARACTERS, preparation._AHEAD, text._ROWS = 300, 1, 4
preparation.available_cores = lambda: 2
source = SOURCES[sys.argv[1]]
class Deadly(source):
    def iter_part(self, side, number, skip=0):
        for count, text in enumerate(super().iter_part(side, number, skip), skip):
            if (number, count) == (1, int(sys.argv[4])):
                os.kill(os.getpid(), signal.SIGKILL)
            yield text
prepare(Deadly.build(sys.argv[2:3], ()), "bytes", sys.argv[3], shard_tokens=900, progress=False,
        **{} if source.validation else {"val_fraction": 0.2})
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fineweb-10bt", "c4", "arxiv"])
def test_killed_and_run_again_it_ends_with_the_same_bytes(name, tmp_path, monkeypatch):
    source = SOURCES[name]
    root = lay_out(source, tmp_path / "repo")
    monkeypatch.setattr(preparation_module, "_CHUNK_CHARACTERS", 300)
    settings = {"inputs": [root], "shard_tokens": 900, "progress": False}
    settings |= {} if source.validation else {"val_fraction": 0.2}
    whole = prepare(name, "bytes", tmp_path / "whole", **settings)
    out = tmp_path / "killed"
    for kill_at, code in ((13, -9), (31, -9), (10**6, 0)):
        command = [sys.executable, "-c", _KILLED, name, str(root), str(out), str(kill_at)]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == code, done.stderr.decode()
        if kill_at == 31:
            assert json.loads((out / "journal.json").read_text())["places"]["train"][0] == 1
    assert _content(out) == _content(whole)


def test_going_on_does_not_read_the_files_that_are_done(fineweb, tmp_path, monkeypatch):
    lay_out(FINEWEB, fineweb, files=3)
    monkeypatch.setattr(preparation_module, "_CHUNK_CHARACTERS", 300)
    monkeypatch.setattr(preparation_module, "_AHEAD", 1)
    real, read = HubSource.iter_part, []

    def told(self, side, number, skip=0):
        read.append(number)
        if read == [0, 0, 0, 0, 1, 2]:  # the share, a document of each split, and then those of training
            raise KeyboardInterrupt
        return real(self, side, number, skip)

    monkeypatch.setattr(HubSource, "iter_part", told)
    settings = {"tokenizer": "bytes", "val_fraction": 0.2, "progress": False, "shard_tokens": 900}
    with pytest.raises(KeyboardInterrupt):
        prepare("fineweb-10bt", inputs=[fineweb], out=tmp_path / "out", **settings)
    read.clear()
    folder = prepare("fineweb-10bt", inputs=[fineweb], out=tmp_path / "out", **settings)
    assert read == [0, 0, 0, 1, 2, 0, 1, 2]
    assert (
        sum(entry.documents for entries in Manifest.read(folder).splits.values() for entry in entries) == 120
    )


@pytest.mark.slow
def test_training_ends_with_the_document_that_reaches_the_tokens(fineweb, tmp_path, monkeypatch):
    settings = {"tokenizer": "bytes", "val_fraction": 0.2, "progress": False, "inputs": [fineweb]}
    whole = open_dataset(prepare("fineweb-10bt", out=tmp_path / "whole", **settings))
    for chunk in (100, 250_000):  # how much is read ahead must not matter for the training split
        monkeypatch.setattr(preparation_module, "_CHUNK_CHARACTERS", chunk)
        part = open_dataset(prepare("fineweb-10bt", out=tmp_path / str(chunk), max_tokens=1000, **settings))
        ids = whole.store.read(0, part.n_tokens)
        assert part.store.read(0, 10**6).tolist() == ids.tolist()
        assert 1000 <= part.n_tokens < 1000 + 200
        assert ids[-1] == whole.eos_id
        assert open_dataset(part.path, "val").n_tokens > 0


def test_limits_hold_for_the_sources_own_validation_too(tmp_path):
    root = lay_out(SOURCES["c4"], tmp_path / "repo")
    settings = {"tokenizer": "bytes", "progress": False, "inputs": [root]}
    short = describe(prepare("c4", out=tmp_path / "short", max_tokens=300, **settings))
    assert all(300 <= split["tokens"] < 500 for split in short["splits"].values())


def test_lines_of_wikitext_become_articles_and_nothing_is_lost():
    rows = [
        " \n",
        " = Valkyria = \n",
        " Text . \n",
        " = = Plot = = \n",
        " More . \n",
        " = Tower = \n",
        " End \n",
    ]
    assert list(articles(rows)) == [" \n", "".join(rows[1:5]), "".join(rows[5:])]


def test_folders_of_the_literatures_scripts_are_found_by_the_corpus_name(tmp_path):
    import numpy as np

    folder = tmp_path / "fineweb-10BT"
    folder.mkdir()
    np.arange(100, dtype="<u2").tofile(folder / "train.bin")
    for name in ("fineweb-10bt", "fineweb", "fineweb-10BT"):
        assert resolve_dataset(name, datasets_dir=tmp_path) == folder
    with pytest.raises(UserError, match="danalab data prepare fineweb-10bt --tokenizer bytes"):
        resolve_dataset("fineweb-10bt", "bytes", datasets_dir=tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda root: (root / "sample/10BT/000.parquet").write_bytes(b"PAR1"),
            r"000\.parquet: not a readable parquet",
        ),
        (
            lambda root: (root / "sample/10BT/000.parquet").unlink(),
            r"no file matches sample/10BT/\*\.parquet",
        ),
    ],
)
def test_a_damaged_or_empty_copy_is_refused_by_name(tmp_path, change, reason):
    root = lay_out(FINEWEB, tmp_path / "repo", files=1)
    change(root)
    with pytest.raises(UserError, match=reason):
        prepare("fineweb-10bt", "bytes", tmp_path / "out", inputs=[root], progress=False)


def test_a_column_that_is_not_utf8_is_named_with_its_row(tmp_path):
    file = tmp_path / "sample/10BT/x.parquet"
    file.parent.mkdir(parents=True)
    column = pa.array([b"good", b"\xff bad"], pa.binary()).view(pa.string())
    parquet.write_table(pa.table({"text": column}), file)
    with pytest.raises(UserError, match=r"x\.parquet: not a readable parquet file: .*0xff"):
        prepare("fineweb-10bt", "bytes", tmp_path / "out", inputs=[tmp_path], progress=False)


def test_bad_inputs_of_corpora_are_refused(tmp_path):
    with pytest.raises(UserError, match="absent: no file matches"):
        make_source("fineweb-10bt", [tmp_path / "absent"]).identity()
    with pytest.raises(UserError, match="takes one --input"):
        make_source("c4", [tmp_path, tmp_path])
    assert main(["data", "download", "stdlib", "--local-dir", str(tmp_path)]) == 2


def test_the_documentation_lists_every_corpus_as_it_is():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for name in CORPORA:
        source = SOURCES[name]
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` | [{source.repo}]"))
        assert source.licence in row, name
