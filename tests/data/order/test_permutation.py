"""The order of windows is a bijection that its key alone decides."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.data.order.permutation import Permutation


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 3000), key=st.binary(max_size=8))
def test_every_item_occurs_exactly_once(n, key):
    items = Permutation(n, key)(np.arange(n))
    assert np.array_equal(np.sort(items), np.arange(n))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 2**61), key=st.binary(max_size=8), data=st.data())
def test_items_are_in_range_and_distinct_for_huge_n(n, key, data):
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True)))
    items = Permutation(n, key)(positions)
    assert ((items >= 0) & (items < n)).all()
    assert len(set(items.tolist())) == len(positions)


def test_items_computed_one_by_one_are_those_computed_together():
    together = Permutation(1000, b"k")(np.arange(1000))
    alone = [int(Permutation(1000, b"k")(np.array([i]))[0]) for i in range(1000)]
    assert together.tolist() == alone


def test_another_key_gives_another_order():
    assert (Permutation(1000, b"a")(np.arange(1000)) != Permutation(1000, b"b")(np.arange(1000))).mean() > 0.9


def test_all_orders_of_four_items_are_equally_likely():
    orders = Counter(tuple(Permutation(4, str(key).encode())(np.arange(4)).tolist()) for key in range(4800))
    assert len(orders) == 24
    assert 130 < min(orders.values()) <= max(orders.values()) < 280  # 200 expected, 5 standard deviations


def test_the_order_never_changes_between_versions():
    order = [8, 11, 9, 2, 5, 7, 0, 3, 10, 4, 6, 1]  # runs that resume rely on it
    assert Permutation(12, b"golden")(np.arange(12)).tolist() == order
