"""Folders of arrays as data sets: the same items from every format, each sequence once an epoch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from danalab.data import open_data, open_dataset, resolve_dataset
from danalab.data.array_split import split_arrays
from danalab.data.arrays import find_files
from danalab.data.open import describe
from danalab.errors import UserError

from .conftest import ids, write


def _all_rows(folder: Path) -> np.ndarray:
    dataset = open_dataset(folder)
    inputs, targets = dataset.sequential(32)[0 : 10**6]
    return np.concatenate([inputs.numpy(), targets[:, -1:].numpy()], axis=1)


@pytest.mark.parametrize("suffix", [".npy", ".pt"])
@pytest.mark.parametrize("kind", ["uint16", "int32", "int64"])
def test_every_format_and_type_gives_the_same_int64_items(tmp_path, suffix, kind):
    array = ids(6, 33, 0)
    write(tmp_path / f"x{suffix}", array.astype(kind))
    rows = _all_rows(tmp_path)
    assert rows.dtype == np.int64
    assert np.array_equal(rows, array)


def test_inputs_and_targets_are_neighbours(arrays):
    inputs, targets = open_dataset(arrays).batches(seed=0, global_batch=8, seq_len=32)[3]
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (8, 32)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_the_whole_length_has_no_last_target(arrays):
    inputs, targets = open_dataset(arrays).sequential(33)[0:57]
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert (targets[:, -1] == -1).all()


def test_each_sequence_comes_once_an_epoch_whatever_the_sizes_of_files(arrays):
    batches = open_dataset(arrays).batches(seed=3, global_batch=19, seq_len=32)
    assert batches._order.n == 57
    seen = torch.cat([batches[step][0] for step in range(3)]).numpy()
    assert len(np.unique(seen, axis=0)) == 57
    assert np.array_equal(np.unique(seen, axis=0), np.unique(_all_rows(arrays)[:, :32], axis=0))


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_ranks_together_see_the_global_batch(arrays, world_size):
    dataset = open_dataset(arrays)
    whole = dataset.batches(seed=0, global_batch=16, seq_len=20)[5]
    parts = [
        dataset.batches(seed=0, global_batch=16, seq_len=20, rank=rank, world_size=world_size)[5]
        for rank in range(world_size)
    ]
    assert torch.equal(torch.cat([part[0] for part in parts]), whole[0])


def test_a_shorter_length_takes_the_beginning_of_each_sequence(arrays):
    whole = _all_rows(arrays)
    inputs, targets = open_dataset(arrays).sequential(7)[0:57]
    assert np.array_equal(inputs.numpy(), whole[:, :7])
    assert np.array_equal(targets.numpy(), whole[:, 1:8])


def test_a_longer_length_is_refused_with_the_longest(arrays):
    with pytest.raises(UserError, match="have 33 tokens; give --seq-len 32 or less"):
        open_dataset(arrays).batches(seed=0, global_batch=2, seq_len=34)


def test_the_vocabulary_is_found_in_both_splits(arrays, tmp_path):
    write(tmp_path / "d" / "train" / "x.npy", np.full((2, 5), 100))
    write(tmp_path / "d" / "val" / "x.npy", np.full((2, 5), 700))
    dataset = open_dataset(tmp_path / "d")
    assert (dataset.least_vocab_size, dataset.vocab_size) == (701, 704)
    with pytest.raises(UserError, match=r"val/x\.npy: token id 700 >= vocab_size 512"):
        dataset.open_split("val").check_vocab(512)


def test_opening_again_reads_no_array(arrays, monkeypatch):
    first = open_dataset(arrays)
    monkeypatch.setattr(
        "danalab.data.formats.shards.Shard.blocks", lambda _: pytest.fail("a file was read again")
    )
    assert open_dataset(arrays).fingerprint == first.fingerprint


def test_the_fingerprint_follows_the_content_and_not_the_format(tmp_path):
    array = ids(5, 9, 0)
    fingerprints = set()
    for number, (suffix, change) in enumerate([(".npy", 0), (".pt", 0), (".npy", 1)]):
        write(tmp_path / str(number) / f"x{suffix}", array + change)
        fingerprints.add(open_dataset(tmp_path / str(number)).fingerprint)
    assert len(fingerprints) == 2


@pytest.mark.parametrize("suffix", [".npy", ".pt"])
def test_a_file_cut_while_it_is_read_ends_in_one_line(tmp_path, suffix):
    path = write(tmp_path / f"x{suffix}", ids(500, 33, 0))
    windows = open_dataset(tmp_path).sequential(32)
    assert len(windows[0:3][0]) == 3
    os.truncate(path, 4096)
    with pytest.raises(UserError, match=r"truncated since the data set was opened"):
        windows[400:402]


def test_an_undivided_folder_says_how_to_make_a_validation_split(arrays):
    with pytest.raises(UserError, match=r"danalab data split .* --output-path"):
        open_dataset(arrays, "val")


def test_sequences_of_different_lengths_are_refused(arrays):
    write(arrays / "z.npy", ids(3, 20, 9))
    with pytest.raises(UserError, match=r"z\.npy: sequences of 20 tokens, not 33 as in .*a\.npy"):
        open_dataset(arrays)


def test_a_split_by_sequence_opens_as_disjoint_and_exhaustive_splits(arrays, tmp_path):
    split_arrays(arrays, tmp_path / "out", val_ratio=0.2, by="sequence")
    train, val = (
        open_dataset(tmp_path / "out", split).sequential(32)[0:100][0].numpy() for split in ("train", "val")
    )
    assert (len(train), len(val)) == (46, 11)
    both = np.unique(np.concatenate([train, val]), axis=0)
    assert np.array_equal(both, np.unique(_all_rows(arrays)[:, :32], axis=0))


def test_arrays_are_found_and_described_like_any_data_set(arrays):
    assert resolve_dataset(arrays) == arrays
    facts = describe(arrays)
    assert facts["layout"] == "arrays"
    assert facts["splits"]["train"]["tokens"] == 57 * 33


def test_links_to_nowhere_are_named(arrays):
    (arrays / "x.npy").symlink_to("gone.npy")
    with pytest.raises(UserError, match=r"x\.npy: a dangling symbolic link \(to gone\.npy\)"):
        open_dataset(arrays)


def test_a_folder_deleted_while_files_are_listed_is_passed_over(arrays, monkeypatch):
    (arrays / "gone").mkdir()
    before, listed = find_files(arrays), os.stat

    def stat(path, *rest, **more):
        if str(path).endswith("gone"):
            raise FileNotFoundError(path)
        return listed(path, *rest, **more)

    monkeypatch.setattr(os, "stat", stat)
    assert find_files(arrays) == before


def test_code_in_a_pt_file_is_never_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/sprung",)

    torch.save({"ids": Trap()}, tmp_path / "x.pt")
    with pytest.raises(
        UserError, match=r"x\.pt: refused: damaged, or more than tensors; nothing was executed"
    ):
        open_dataset(tmp_path)
    assert not (tmp_path / "sprung").exists()


SPLIT_BY_NAME = [
    (["train.npy", "val.npy"], (["train.npy"], ["val.npy"]), []),
    (["train_0.npy", "train_1.npy", "valid_0.npy", "test_0.npy"], (["train_0.npy", "train_1.npy"], ["valid_0.npy"]),
     ["test_0.npy"]),
    (["train/a.npy", "validation/b.npy", "more.npy"], (["train/a.npy"], ["validation/b.npy"]), ["more.npy"]),
    (["a.npy", "sub/b.npy", "dev/c.npy"], (["a.npy", "sub/b.npy"], ["dev/c.npy"]), []),
    (["train/a.npy", "test/b.npy"], (["train/a.npy"], []), ["test/b.npy"]),
    (["val.npy"], (["val.npy"], []), []),
]  # fmt: skip


@pytest.mark.parametrize(("names", "expected", "unread"), SPLIT_BY_NAME, ids=lambda each: str(each)[:30])
def test_names_of_files_and_folders_say_the_split(tmp_path, names, expected, unread):
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, ids(6, 33, number))
    for split, files in zip(("train", "val"), expected, strict=True):
        if files:
            opened = open_dataset(tmp_path, split).store.shards
            assert [file.path.relative_to(tmp_path).as_posix() for file in opened] == files
    assert describe(tmp_path)["remarks"] == ([f"not read: {', '.join(unread)}"] if unread else [])


def test_an_epoch_counts_the_tokens_that_are_read(arrays, tmp_path):
    dataset = open_dataset(arrays)
    assert dataset.tokens_per_epoch(8) == 8 * dataset.batches(seed=0, global_batch=1, seq_len=8)._order.n
    (tmp_path / "stream").mkdir()
    ids(1, 5000, 0)[0].astype("<u2").tofile(tmp_path / "stream" / "train.bin")
    (tmp_path / "stream" / "tokens.json").write_text('{"vocab_size": 500}')
    mixed = open_data(f"{arrays}:0.5,{tmp_path / 'stream'}:0.5")
    assert mixed.tokens_per_epoch(8) == dataset.tokens_per_epoch(8) + 5000


def test_a_file_without_a_header_says_what_it_may_be(tmp_path):
    (tmp_path / "part-0.npy").write_bytes(bytes(range(200)))
    with pytest.raises(UserError, match=r"part-0\.npy: damaged, or not rows of integers: .*"):
        open_dataset(tmp_path)
