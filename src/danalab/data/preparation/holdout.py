"""The choice of validation documents, and limits on the number of documents.

The validation documents are the source's own, or the first N distinct ones and their copies, or those whose keyed
hash falls below a fraction. The hash is of the content: copies of a document are in the same split, and the choice
depends neither on the order nor on the number of processes.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from danalab.data.sources.base import TRAIN, VAL, Source, SourcePosition, walk
from danalab.errors import UserError


class SplitDocument(NamedTuple):
    """A document, its split, and the position after it."""

    split: str
    text: str
    position: SourcePosition


@dataclass(frozen=True)
class SplitRule:
    """How validation documents are chosen. If a source has its own, only `limit` applies."""

    fraction: float
    """Share of the documents that validate."""
    first: int | None = None
    """Number of documents that validate, the first ones, instead of a share."""
    limit: int | None = None
    """Maximum number of documents; of each split, if the source has its own validation documents."""

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise UserError(f"--val-fraction is {self.fraction}; it must be a share between 0 and 1")
        if self.first is not None and self.first < 1:
            raise UserError(f"--val-documents is {self.first}; it must be at least 1")
        if self.limit is not None and self.limit < 2:
            raise UserError(
                f"--max-documents is {self.limit}; it must be at least 2, to train and to validate"
            )


def draw(text: str, key: str) -> float:
    """A pseudo-random number in [0, 1) determined by the text and the key."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64


def split_documents(
    source: Source,
    rule: SplitRule,
    start: SourcePosition | None = None,
    counts: tuple[int, int] = (0, 0),
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[SplitDocument]:
    """The source's non-empty documents, each with its split, from the place `start` on.

    The source's own validation documents come last; before each of its training documents `enough` may end those.
    Without them the rule decides; if it selects none, the last document validates. `counts`: training and validation
    documents before `start`.
    """
    if source.parts(VAL) is not None:
        yield from _with_own_validation(source, rule, start, counts, enough)
        return
    validates = _choice(source, rule, start)
    n_train, n_val = counts
    held: SplitDocument | None = (
        None  # until one validates: one document late, since the last one may have to validate
    )
    for position, text in walk(source, TRAIN, start):
        if rule.limit is not None and n_train + n_val + (held is not None) >= rule.limit:
            break
        document = SplitDocument(VAL if validates(text) else TRAIN, text, position)
        if document.split == TRAIN and not n_val:
            document, held = held, document
        elif held is not None:  # before the validating one, after which reading may resume
            n_train += 1
            yield held
            held = None
        if document is not None:
            n_train, n_val = n_train + (document.split == TRAIN), n_val + (document.split == VAL)
            yield document
    if held is not None and n_train:
        # A pass over the source, which is small in this case.
        earlier = itertools.takewhile(lambda pair: pair[0] < held.position, walk(source, TRAIN, None))
        if any(text == held.text for _, text in earlier):
            raise UserError(
                f"the source '{source.name}' has no document to validate on: none was selected, and the last one is a "
                "copy of an earlier one; give more text, --val-input, or a larger --val-fraction"
            )
        yield held._replace(split=VAL)
    if not n_train:
        raise UserError(
            f"the source '{source.name}' has no document left to train on beside those that validate; "
            "give more text, --val-input, or a smaller --val-fraction or --val-documents"
        )


def _with_own_validation(
    source: Source,
    rule: SplitRule,
    start: SourcePosition | None,
    counts: tuple[int, int],
    enough: Callable[[], bool],
) -> Iterator[SplitDocument]:
    done: dict[str, int] = dict(zip((TRAIN, VAL), counts, strict=True))
    for side in (TRAIN, VAL):
        if start is not None and start.side == VAL and side == TRAIN:
            continue
        for position, text in walk(source, side, start):
            if done[side] == rule.limit or (side == TRAIN and enough()):
                break
            done[side] += 1
            yield SplitDocument(side, text, position)
    for side, label in ((TRAIN, "training"), (VAL, "validation")):
        if not done[side]:
            raise UserError(f"the source '{source.name}' has no {label} text")


def _choice(source: Source, rule: SplitRule, start: SourcePosition | None) -> Callable[[str], bool]:
    """Whether a document validates."""
    if rule.first is None:
        return lambda text: draw(text, "danalab split 1") < rule.fraction
    n, chosen = rule.first, set[bytes]()

    def validates(text: str) -> bool:
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if len(chosen) < n:
            chosen.add(digest)
        return digest in chosen

    if start is not None:  # on resume: select again from the documents before
        for position, text in walk(source, TRAIN, None):
            if len(chosen) == n or position > start:
                break
            validates(text)
    return validates
