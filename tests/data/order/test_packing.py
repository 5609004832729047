"""Whole documents in rows: no padding, every token at most once, any row without the rows before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.data.formats.shards import Shard, TokenStore
from danalab.data.order.batches import Batches
from danalab.data.order.packing import PackedDocuments, pack
from danalab.errors import UserError

EOS = 0


class _Memory(Shard):
    """A shard that holds its tokens in memory."""

    content: np.ndarray

    def tokens(self, *, scattered: bool = False) -> np.ndarray:
        return self.content


def _store(lengths: np.ndarray, shards: int = 1) -> TokenStore:
    """Documents whose ids count up over the stream from 1, each ended by EOS."""
    stream = np.arange(1, int(lengths.sum()) + 1, dtype=np.uint32)
    stream[np.cumsum(lengths) - 1] = EOS
    made = []
    for part in np.array_split(stream, shards):
        shard = _Memory(Path("x"), 0, np.dtype("<u4"), len(part))
        object.__setattr__(shard, "content", part)
        made.append(shard)
    return TokenStore(made, "memory (train)")


def _lengths(n: int, mu: float = 3.0, sigma: float = 1.0) -> np.ndarray:
    return np.maximum(2, np.random.default_rng(0).lognormal(mu, sigma, n).astype(int))


def _packed(store: TokenStore, seq_len: int, *, seed: int = 0, chunk: int = 64) -> PackedDocuments:
    fingerprint = f"{store.n_tokens} {id(store)}"
    return PackedDocuments(store, EOS, fingerprint, seq_len, f"{seed}|".encode(), "memory", chunk=chunk)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=60), capacity=st.integers(20, 40))
def test_packing_fills_every_row_and_takes_each_token_once(lengths, capacity):
    array = np.array(lengths)
    n_rows = int(array.sum()) // capacity
    rows, pieces, offsets, used = pack(array, capacity, n_rows)
    assert np.array_equal(np.bincount(rows, used, minlength=n_rows), np.full(n_rows, capacity))
    taken = [set() for _ in lengths]
    for piece, offset, length in zip(pieces, offsets, used, strict=True):
        places = set(range(offset, offset + length))
        assert not places & taken[piece]
        assert max(places) < lengths[piece]
        taken[piece] |= places


def test_a_row_begins_where_a_document_does_and_holds_whole_documents():
    packed = _packed(_store(_lengths(2000, mu=2.0), shards=3), 64)
    inputs, targets = packed.take([(0, packed.per_epoch)])
    assert inputs.shape == (packed.per_epoch, 64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    rows = torch.cat([inputs, targets[:, -1:]], dim=1).numpy()
    follows = (rows[:, 1:] == rows[:, :-1] + 1) | (rows[:, 1:] == EOS)
    begins = rows[:, :-1] == EOS
    assert (follows | begins).all()
    assert (rows[:, 0] == EOS).mean() > 0.9  # the others go on with a document that is longer than a row


def test_every_token_is_a_target_at_most_once_an_epoch_and_few_are_left_out():
    lengths = _lengths(3000)
    store = _store(lengths)
    packed = _packed(store, 64, chunk=512)
    targets = packed.take([(0, packed.per_epoch)])[1].numpy().ravel()
    ordinary = targets[targets != EOS]
    assert len(np.unique(ordinary)) == len(ordinary)
    report = packed.report()
    assert report.cropped_share == pytest.approx(1 - len(targets) / store.n_tokens)
    assert report.cropped_share < 0.02
    assert "3,000 documents" in str(Batches(packed, global_batch=1).report())


def test_any_row_can_be_had_without_those_before_it():
    store = _store(_lengths(2000))
    straight = _packed(store, 64).take([(0, 500)])
    for place in (499, 3, 250, 123):
        for got, expected in zip(_packed(store, 64).take([(place, place + 1)]), straight, strict=True):
            assert torch.equal(got[0], expected[place])


def test_epochs_and_seeds_pack_differently():
    store = _store(_lengths(2000))
    packed = _packed(store, 64)
    n = packed.per_epoch
    first, second = packed.take([(0, n)])[0], packed.take([(n, 2 * n)])[0]
    other = _packed(store, 64, seed=1).take([(0, n)])[0]
    for rows in (second, other):
        assert (rows != first).any(dim=1).float().mean() > 0.9


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_ranks_together_see_the_global_batch(world_size):
    store = _store(_lengths(2000))
    whole = Batches(_packed(store, 64), global_batch=16)
    for step in (0, 1, 37, 1000):
        parts = [
            Batches(_packed(store, 64), global_batch=16, rank=rank, world_size=world_size)[step]
            for rank in range(world_size)
        ]
        assert torch.equal(torch.cat([part[0] for part in parts]), whole[step][0])


def test_the_mix_of_lengths_is_stationary_and_little_is_cut():
    """10,000 rows of 2,048 of log-normal documents, in the plan's own numbers (no tokens are read)."""
    lengths = _lengths(42_000, mu=6.0, sigma=1.1)
    packed = _packed(_store(lengths), 2048, chunk=8192)
    assert packed.per_epoch >= 10_000
    bounds = packed._rows_of_epoch(0)
    per_row, cut, total = [], [], []
    for chunk in range(packed.n_chunks):
        made = packed._packed(0, chunk)
        per_row += np.diff(made.first).tolist()
        row_of = np.repeat(np.arange(len(made.first) - 1), np.diff(made.first))
        cut += np.bincount(row_of, made.lengths * made.cut, minlength=len(made.first) - 1).tolist()
        total += np.bincount(row_of, made.lengths, minlength=len(made.first) - 1).tolist()
    assert len(per_row) == bounds[-1]
    assert set(total) == {2048.0}  # no padding
    per_row, cut = np.array(per_row)[:10_000], np.array(cut)[:10_000]
    assert packed.report().cropped_share < 0.001
    assert cut.sum() / (10_000 * 2048) < 0.02
    for stretch in np.array_split(np.arange(10_000), 10):
        assert cut[stretch].sum() / (len(stretch) * 2048) < 0.02
        assert per_row[stretch].mean() == pytest.approx(per_row.mean(), rel=0.15)


def test_documents_longer_than_a_row_fill_rows_by_themselves():
    packed = _packed(_store(np.array([300, 5, 5, 5, 5, 300, 8])), 64, chunk=1000)
    targets = packed.take([(0, packed.per_epoch)])[1].numpy()
    runs = [row for row in targets if EOS not in row]
    assert len(runs) == 8
    assert all((np.diff(row.astype(np.int64)) == 1).all() for row in runs)


def test_the_ends_of_documents_are_kept(monkeypatch):
    store = _store(_lengths(100))
    PackedDocuments(store, EOS, "kept", 16, b"", "memory")
    monkeypatch.setattr(store, "read", lambda *_: pytest.fail("the stream was read again"))
    PackedDocuments(store, EOS, "kept", 16, b"", "memory")


def test_a_stream_without_documents_is_refused():
    with pytest.raises(UserError, match="no end of a document"):
        PackedDocuments(_store(np.array([50])), 99, "none", 16, b"", "memory")


def test_fewer_tokens_than_a_row_are_refused():
    with pytest.raises(UserError, match="do not fill one row of 64"):
        _packed(_store(np.array([5, 5])), 64)
