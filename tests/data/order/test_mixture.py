"""Mixtures: exact shares, each source in its own order, a pure function of the place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.data import open_data
from danalab.data.mixture import BLOCK, MixedOrder, block_counts, parse_mixture
from danalab.data.tokenizers import train_bpe
from danalab.errors import UserError


class _Counted:
    """Position p of the order is the number p; an epoch never ends."""

    n = 10**6

    def __call__(self, begin, end):
        return np.arange(begin, end)


def _mixed(weights=(0.7, 0.3), block=100) -> MixedOrder:
    return MixedOrder([_Counted() for _ in weights], block_counts(weights, block))


@settings(max_examples=50, deadline=None)
@given(weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_counts_sum_up_to_the_block_and_follow_the_weights(weights):
    counts = block_counts(weights, 10**6)
    assert sum(counts) == 10**6
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - 10**6 * weight / sum(weights)) < 1


def test_every_block_has_the_exact_shares_evenly_spread():
    mixed = _mixed()
    for number in range(5):
        owner, _ = mixed.positions(number * 100, (number + 1) * 100)
        assert np.bincount(owner).tolist() == [70, 30]
        before = np.cumsum(owner == 1)
        assert np.abs(before - 0.3 * np.arange(1, 101)).max() < 2


def test_each_source_keeps_its_own_order():
    rows = _mixed()(0, 450)
    for number in range(2):
        mine = rows[(rows // 10**6) == number] - 10**6 * number
        assert np.array_equal(mine, np.arange(len(mine)))


def test_any_place_is_the_same_however_it_is_reached():
    whole = _mixed()(0, 300)
    for begin, end in ((7, 8), (95, 130), (250, 260), (0, 1), (200, 300)):
        assert np.array_equal(_mixed()(begin, end), whole[begin:end])


def _bare(folder: Path, start: int, n: int = 4000) -> Path:
    folder.mkdir()
    for split in ("train", "val"):
        (start + np.arange(n) % 500).astype("<u2").tofile(folder / f"{split}.bin")
    return folder


def test_a_mixture_opens_like_a_data_set(tmp_path):
    a, b = _bare(tmp_path / "a", 0), _bare(tmp_path / "b", 1000)
    dataset = open_data(f"{a}:3,{b}:1")
    inputs, targets = dataset.batches(seed=0, global_batch=400, seq_len=8)[0]
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert int((inputs[:, 0] >= 1000).sum()) == pytest.approx(100, abs=2)
    assert (dataset.name, dataset.n_tokens) == ("a+b", 8000)
    assert open_data(dataset.location).fingerprint == dataset.fingerprint
    assert len(dataset.open_split("val").sequential(8)) == 2 * 499
    alone = open_data(b).batches(seed=0, global_batch=100, seq_len=8)[0][0]
    assert torch.equal(inputs[inputs[:, 0] >= 1000], alone[: int((inputs[:, 0] >= 1000).sum())])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b", "'a' has no weight"),
        ("a:1,b", "'b' has no weight"),
        ("a:1,b:x", "'b:x' has no weight"),
        ("a:1,a:2", "only once"),
        ("a:1,b:0", "must be positive"),
        ("a:1,b:-1", "must be positive"),
        ("a:1,b:1e-9", "less than one sequence"),
    ],
)
def test_what_is_no_mixture_is_refused(text, reason):
    with pytest.raises(UserError, match=reason):
        parse_mixture(text)


def test_data_of_another_tokenizer_is_refused(tmp_path):
    a = _bare(tmp_path / "a", 0)
    (tmp_path / "arrays" / "train").mkdir(parents=True)
    (tmp_path / "arrays" / "val").mkdir()
    for split in ("train", "val"):
        np.save(tmp_path / "arrays" / split / "x.npy", np.arange(40).reshape(4, 10))
    with pytest.raises(UserError, match="a mixture needs one tokenizer"):
        open_data(f"{a}:1,{tmp_path / 'arrays'}:1")


def test_the_block_of_the_command_line_holds_four_digits():
    assert block_counts([0.7, 0.3]) == [7000, 3000]
    assert BLOCK == 10_000


def test_two_tokenizers_of_one_name_are_refused(tmp_path):
    for name, text in (("a", "first words here"), ("b", "other letters instead")):
        (tmp_path / name).mkdir()
        (np.arange(4000) % 250).astype("<u2").tofile(tmp_path / name / "train.bin")
        train_bpe([text] * 3, 270).save(tmp_path / name)
    with pytest.raises(UserError, match="b and a: two different tokenizers named bpe-270"):
        open_data(f"{tmp_path / 'a'}:0.5,{tmp_path / 'b'}:0.5")
