"""train/ and val/ of links: disjoint, exhaustive, deterministic, and never over what is there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.data.array_split import split_arrays
from danalab.errors import UserError

from .conftest import ids, write


def _links(folder: Path) -> dict[str, Path]:
    return {
        path.relative_to(folder).as_posix(): path.resolve()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".npy", ".pt")
    }


def test_train_and_val_are_disjoint_exhaustive_links_with_the_folders_of_the_source(arrays, tmp_path):
    made = split_arrays(arrays, tmp_path / "out", val_ratio=0.34)
    train, val = _links(Path(made["train_dir"])), _links(Path(made["val_dir"]))
    assert {**train, **val} == _links(arrays)
    assert not train.keys() & val.keys()
    assert (made["train_files"], made["val_files"]) == (len(train), len(val)) == (4, 2)
    assert all((Path(made["train_dir"]) / name).is_symlink() for name in train)


def test_the_same_seed_chooses_the_same_files_and_another_does_not(arrays, tmp_path):
    chosen = [
        tuple(_links(Path(split_arrays(arrays, tmp_path / str(n), val_ratio=0.5, seed=seed)["val_dir"])))
        for n, seed in enumerate([1, 1, 2, 3, 4])
    ]
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) > 1


@pytest.mark.parametrize("by", ["file", "sequence"])
def test_files_of_unlike_lengths_are_refused_since_the_split_would_not_open(arrays, tmp_path, by):
    write(arrays / "z.npy", ids(3, 20, 9))
    with pytest.raises(UserError, match=r"z\.npy: sequences of 20 tokens, not 33 as in "):
        split_arrays(arrays, tmp_path / "out", by=by)
    assert not (tmp_path / "out").exists()


def test_relative_paths_lead_to_the_files(arrays, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    split_arrays(Path("arrays"), Path("deep/out"))
    assert all(path.is_file() for path in _links(tmp_path / "deep" / "out").values())


def test_names_of_one_file_never_straddle(tmp_path):
    source = tmp_path / "source"
    for number in range(6):
        path = write(source / f"{number}.npy", ids(2, 5, number))
        (source / f"again{number}.npy").symlink_to(path)
        os.link(path, source / f"hard{number}.npy")
    for seed in range(8):
        made = split_arrays(source, tmp_path / f"out{seed}", val_ratio=0.3, seed=seed)
        inodes = [
            {os.stat(path).st_ino for path in _links(Path(place)).values()}
            for place in (made["train_dir"], made["val_dir"])
        ]
        assert not inodes[0] & inodes[1]


def test_another_ratio_does_not_write_over_an_earlier_split(arrays, tmp_path):
    split_arrays(arrays, tmp_path / "out")
    before = _links(tmp_path / "out")
    with pytest.raises(OSError, match="not empty"):
        split_arrays(arrays, tmp_path / "out", val_ratio=0.5)
    assert _links(tmp_path / "out") == before


def test_an_empty_output_folder_is_taken(arrays, tmp_path):
    (tmp_path / "out").mkdir()
    assert split_arrays(arrays, tmp_path / "out")["val_files"] == 1


def test_nothing_is_left_behind_by_a_failure(arrays, tmp_path, monkeypatch):
    monkeypatch.setattr("danalab.data.array_split.write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        split_arrays(arrays, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["arrays"]


@settings(max_examples=25, deadline=None)
@given(ratio=st.floats(0.001, 0.999), seed=st.integers(0, 99))
def test_by_sequence_every_sequence_is_in_exactly_one_split(tmp_path_factory, ratio, seed):
    folder = tmp_path_factory.mktemp("by")
    counts = {"a.npy": 3, "b/c.npy": 1, "d.npy": 9}
    for number, (name, n) in enumerate(counts.items()):
        write(folder / "in" / name, ids(n, 5, number))
    made = split_arrays(folder / "in", folder / "out", val_ratio=ratio, seed=seed, by="sequence")
    for number, (name, n) in enumerate(counts.items()):
        places = [Path(place) / name for place in (made["train_dir"], made["val_dir"])]
        rows = np.concatenate([np.load(place) for place in places if place.exists()])
        expected = ids(n, 5, number)
        assert np.array_equal(np.unique(rows, axis=0), np.unique(expected, axis=0))
        assert len(rows) == n
    assert made["train_sequences"]
    assert made["val_sequences"]


@pytest.mark.parametrize(
    ("change", "settings", "reason"),
    [
        (None, {"out": "arrays/out"}, "lies in the data folder"),
        (None, {"out": "arrays"}, "lies in the data folder"),
        (None, {"source": "nothing"}, "no such folder"),
        ("dangling", {}, r"x\.npy: a dangling symbolic link"),
        ("one", {}, "give --by sequence"),
        ("none", {}, "no arrays"),
        ("divided", {}, "has train/ and val/ already"),
    ],
)
def test_what_cannot_be_divided_is_refused(tmp_path, change, settings, reason):
    source = tmp_path / "arrays"
    for number in range({"one": 1, "none": 0}.get(change, 3)):
        write(source / f"{number}.npy", ids(2, 5, number))
    source.mkdir(exist_ok=True)
    if change == "dangling":
        (source / "x.npy").symlink_to(tmp_path / "gone.npy")
    if change == "divided":
        (source / "train").mkdir()
        (source / "val").mkdir()
    arguments = {**settings}
    places = [tmp_path / arguments.pop("source", "arrays"), tmp_path / arguments.pop("out", "out")]
    with pytest.raises(UserError, match=reason):
        split_arrays(*places, **arguments)
    assert not (tmp_path / "out").exists()
