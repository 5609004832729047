"""Batches are a pure function of the step: the same for any number of ranks, each window once an epoch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.data.formats.shards import Shard, TokenStore
from danalab.data.order.batches import Batches, Sequential, Windows
from danalab.data.order.permutation import EndlessOrder
from danalab.errors import UserError

U2 = np.dtype("<u2")


class _Memory(Shard):
    """A shard whose tokens are counted up from its first: position = id."""

    def read(self, starts: Sequence[int] | np.ndarray, length: int) -> np.ndarray:
        return (self.offset + np.asarray(starts)[:, None] + np.arange(length)).astype(U2)


def _store(*sizes: int) -> TokenStore:
    starts = np.cumsum([0, *sizes]).tolist()
    return TokenStore([_Memory(Path("x"), a, U2, n) for a, n in zip(starts, sizes, strict=False)])


def _batches(
    store: TokenStore,
    *,
    fingerprint="fingerprint",
    seed=1,
    global_batch=8,
    seq_len=16,
    rank=0,
    world_size=1,
) -> Batches:
    key = f"danalab order 1|{fingerprint}|{seed}|{seq_len}|".encode()
    rows = Windows(store, seq_len)
    order = EndlessOrder(rows.n, key)
    return Batches(rows, order, "memory", global_batch=global_batch, rank=rank, world_size=world_size)


STORE = _store(5003)


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
@pytest.mark.parametrize("step", [0, 1, 38, 39, 40, 1000, 10**9])
def test_ranks_together_see_the_global_batch(world_size, step):
    whole = _batches(STORE)[step]
    parts = [_batches(STORE, rank=rank, world_size=world_size)[step] for rank in range(world_size)]
    for place in (0, 1):
        assert torch.equal(torch.cat([part[place] for part in parts]), whole[place])


@settings(max_examples=30, deadline=None)
@given(global_batch=st.integers(1, 20), seq_len=st.integers(1, 50), seed=st.integers(0, 5))
def test_each_window_comes_exactly_once_an_epoch_and_epochs_follow_without_a_seam(
    global_batch, seq_len, seed
):
    batches = _batches(_store(1501), global_batch=global_batch, seq_len=seq_len, seed=seed)
    n = batches._order.n
    assert n == 1500 // seq_len
    steps = -(-2 * n // global_batch)
    seen = np.concatenate([batches.windows(step) for step in range(steps)])
    for epoch in range(2):
        assert np.array_equal(np.sort(seen[epoch * n : (epoch + 1) * n]), np.arange(n))


def test_the_order_does_not_depend_on_the_global_batch():
    small = torch.cat([_batches(STORE, global_batch=4)[step][0] for step in range(6)])
    large = torch.cat([_batches(STORE, global_batch=12)[step][0] for step in range(2)])
    assert torch.equal(small, large)


def test_epochs_and_seeds_and_data_sets_have_different_orders():
    n = _batches(STORE)._order.n
    base = _batches(STORE, global_batch=1)
    first = np.concatenate([base.windows(i) for i in range(n)])
    second = np.concatenate([base.windows(n + i) for i in range(n)])
    seeded = np.concatenate([_batches(STORE, global_batch=n, seed=2).windows(0)])
    other = _batches(STORE, fingerprint="other", global_batch=n).windows(0)
    for order in (second, seeded, other):
        assert (order != first).mean() > 0.9


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 300), max_size=6), seq_len=st.integers(1, 40))
def test_targets_follow_inputs_across_shards(cuts, seq_len):
    store = _store(*cuts, 400)
    batches = _batches(store, global_batch=7, seq_len=seq_len)
    inputs, targets = batches[0]
    assert inputs.shape == targets.shape == (7, seq_len)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    starts = torch.from_numpy(batches.windows(0) * seq_len)
    assert torch.equal(inputs, starts[:, None] + torch.arange(seq_len))
    assert torch.equal(targets, inputs + 1)


def test_prefetched_batches_are_those_of_the_steps():
    batches = _batches(STORE)
    stream = batches.iterate(37)
    for step in range(37, 50):
        for got, expected in zip(next(stream), batches[step], strict=True):
            assert torch.equal(got, expected)
    stream.close()  # type: ignore[attr-defined]


def test_closing_the_stream_ends_its_thread():
    before = set(threading.enumerate())
    stream = _batches(STORE).iterate(0)
    next(stream)
    (thread,) = set(threading.enumerate()) - before
    stream.close()  # type: ignore[attr-defined]
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_an_error_of_the_prefetching_thread_reaches_the_reader():
    batches = _batches(STORE)
    stream = batches.iterate(-1)
    with pytest.raises(IndexError, match="-1"):
        next(stream)


def test_sequential_windows_cover_the_split_in_order_whatever_the_batch():
    windows = Sequential(Windows(_store(100, 57), 10), "memory")
    assert len(windows) == 15
    whole, targets = windows[0:15]
    assert torch.equal(whole.flatten(), torch.arange(150))
    assert torch.equal(targets, whole + 1)
    pieces = torch.cat([windows[i : i + 4][0] for i in range(0, len(windows), 4)])
    assert torch.equal(pieces, whole)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"seq_len": 0}, "seq_len is 0"),
        ({"world_size": 3}, "not a multiple of the 3 ranks"),
        ({"seq_len": 1000}, "5 sequences of 1000 tokens, but one batch has 8"),
    ],
)
def test_impossible_batches_are_refused(settings, reason):
    with pytest.raises(UserError, match=reason):
        _batches(STORE, **settings)


def test_a_split_shorter_than_a_sequence_is_refused():
    with pytest.raises(UserError, match="memory: shorter than one sequence of 101 tokens"):
        Sequential(Windows(_store(100), 100), "memory")


def test_negative_steps_are_refused():
    with pytest.raises(IndexError):
        _batches(STORE)[-1]
