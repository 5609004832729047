"""The validation documents are chosen by content, disjoint from the training documents, and never none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.data.preparation.holdout import SplitRule, split_documents
from danalab.data.sources import TRAIN, VAL, Source
from danalab.errors import UserError


class _Listed(Source):
    name = "listed"
    licence = "none"
    summary = "documents of a list"

    def __init__(self, documents: list[str], validation: list[str] | None = None):
        self.documents = documents
        self.validation = validation

    def iter_documents(self) -> Iterator[str]:
        return iter(self.documents)

    def parts(self, side: str) -> int | None:
        return 1 if side == TRAIN or self.validation is not None else None

    def iter_part(self, side: str, number: int, skip: int = 0) -> Iterator[str]:
        return iter((self.documents if side == TRAIN else self.validation or [])[skip:])

    def size_bytes(self) -> int:
        return sum(map(len, self.documents))

    def identity(self) -> str:
        return repr(self.documents)


def _split(documents: list[str], fraction: float) -> tuple[list[str], list[str]]:
    return _sides(list(split_documents(_Listed(documents), SplitRule(fraction))))


def _sides(documents: list) -> tuple[list[str], list[str]]:
    return [d.text for d in documents if d.split == TRAIN], [d.text for d in documents if d.split == VAL]


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.text(min_size=1, max_size=9), min_size=2, unique=True), fraction=st.floats(0.001, 0.3)
)
def test_no_document_is_lost_repeated_or_on_both_sides(texts, fraction):
    try:
        train, val = _split(texts, fraction)
    except UserError:
        return  # by chance all validate
    assert sorted(train + val) == sorted(texts)
    assert train
    assert val
    assert [text for text in texts if text in set(train)] == train


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text(min_size=1, max_size=9), min_size=30, max_size=60, unique=True))
def test_the_choice_does_not_depend_on_the_order_of_the_documents(texts):
    assert set(_split(texts, 0.5)[1]) == set(_split(texts[::-1], 0.5)[1])


def test_equal_documents_are_on_the_same_side():
    train, val = _split([f"document {i % 50}" for i in range(500)], 0.2)
    assert not set(train) & set(val)


def test_the_last_document_does_not_validate_when_it_is_a_copy():
    assert _split(["a", "b", "c"], 1e-9) == (["a", "b"], ["c"])
    with pytest.raises(UserError, match="no document to validate on"):
        _split(["a", "b", "a"], 1e-9)


def test_the_fraction_is_kept_on_average():
    _, val = _split([str(i) for i in range(20_000)], 0.02)
    assert 320 < len(val) < 480


def test_the_sources_own_validation_is_used_whole():
    assert _sides(list(split_documents(_Listed(["a", "b"], ["c", ""]), SplitRule(0.9)))) == (
        ["a", "b"],
        ["c"],
    )


def test_the_first_documents_validate_and_their_copies_with_them():
    documents = ["a", "a", "b", "c", "a", "d", "b", "e"]
    assert _sides(list(split_documents(_Listed(documents), SplitRule(0.9, first=2)))) == (
        ["c", "d", "e"],
        ["a", "a", "b", "a", "b"],
    )


def test_no_more_documents_are_taken_than_the_limit():
    documents = [str(i) for i in range(100)]
    train, val = _sides(list(split_documents(_Listed(documents), SplitRule(0.1, limit=10))))
    assert sorted([*train, *val]) == documents[:10]
    own = _sides(list(split_documents(_Listed(documents, ["x", "y", "z"]), SplitRule(0.1, limit=2))))
    assert own == (["0", "1"], ["x", "y"])


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.sampled_from("abcdefghij"), min_size=6, max_size=30),
    own=st.none() | st.just(["x", "", "y"]),
    first=st.none() | st.integers(1, 3),
    limit=st.none() | st.integers(5, 20),
    stop=st.integers(1, 30),
)
def test_going_on_from_any_place_gives_the_same_documents(texts, own, first, limit, stop):
    source, rule = _Listed(texts, own), SplitRule(0.1, first, limit)
    try:
        whole = list(split_documents(source, rule))
    except UserError:
        return  # all validate
    before = whole[: min(stop, len(whole) - 1)]
    train, val = _sides(before)
    rest = list(split_documents(source, rule, before[-1].position, (len(train), len(val))))
    assert before + rest == whole


@pytest.mark.parametrize(
    ("documents", "validation"),
    [(["only one"], None), ([], None), (["", ""], None), (["a"], []), ([], ["a"])],
)
def test_too_few_documents_are_refused(documents, validation):
    with pytest.raises(UserError, match="source 'listed' has no"):
        list(split_documents(_Listed(documents, validation), SplitRule(0.01)))
