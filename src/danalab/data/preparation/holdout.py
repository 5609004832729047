"""Which documents validate, and how many are taken at all.

The source's own validation documents, or the first N different ones, or those whose keyed hash falls below a
fraction. The hash is of the content, so a document that occurs twice is on one side only, and the choice does not
depend on the order or on how many processes work. The first N keep their copies, too: whatever equals one of them
validates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from danalab.data.sources.base import TRAIN, VAL, Place, Source, walk
from danalab.errors import UserError


class SplitDocument(NamedTuple):
    """A document, its split, and where reading stands behind it."""

    split: str
    text: str
    place: Place


@dataclass(frozen=True)
class SplitRule:
    """How documents are chosen; unused where a source has validation documents of its own, `limit` apart."""

    fraction: float
    """Share of the documents that validate."""
    first: int | None = None
    """How many validate, in place of a share: the first ones."""
    limit: int | None = None
    """Documents that are taken in all; of each split, where the source has its own."""

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise UserError(f"--val-fraction {self.fraction}: a share between 0 and 1 is needed")
        if self.first is not None and self.first < 1:
            raise UserError(f"--val-documents {self.first}: at least 1 is needed")
        if self.limit is not None and self.limit < 2:
            raise UserError(f"--max-documents {self.limit}: at least 2 are needed, to train and to validate")


def draw(text: str, key: str) -> float:
    """A number in [0, 1) that depends on the text and the key alone."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64


def split_documents(
    source: Source,
    rule: SplitRule,
    start: Place | None = None,
    counts: tuple[int, int] = (0, 0),
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[SplitDocument]:
    """The source's documents, each with its split; empty ones are left out.

    Documents of the source's own validation come last. Otherwise the rule decides; if it chose none, the last
    document validates, so that there always is a validation split.

    Args:
        source: whose documents.
        rule: which validate.
        start: go on behind this place.
        counts: training and validation documents before it.
        enough: asked before each training document where validation ones follow: whether to pass on to those.

    Raises:
        UserError: fewer than two documents, none left to train on, or none to validate on that is not trained on.
    """
    if source.parts(VAL) is not None:
        yield from _with_own_validation(source, rule, start, counts, enough)
        return
    validates = _first(source, rule.first, start) if rule.first else _below(rule.fraction)
    n_train, n_val = counts
    held: SplitDocument | None = None  # while none validates: one document behind, to be able to give it the last one
    for place, text in walk(source, TRAIN, start):
        if rule.limit is not None and n_train + n_val + (held is not None) >= rule.limit:
            break
        document = SplitDocument(VAL if validates(text) else TRAIN, text, place)
        if document.split == TRAIN and not n_val:
            document, held = held, document
        elif held is not None:  # before the one that validates: reading may go on from there
            n_train += 1
            yield held
            held = None
        if document is not None:
            n_train, n_val = n_train + (document.split == TRAIN), n_val + (document.split == VAL)
            yield document
    if held is not None and n_train:
        if _is_copy(source, held):
            raise UserError(
                f"the source '{source.name}' has no document to validate on: none was chosen, and the last is a copy "
                "of an earlier one; give more text, --val-input, or a larger --val-fraction"
            )
        yield held._replace(split=VAL)
    if not n_train:
        raise UserError(
            f"the source '{source.name}' has no document left to train on beside those that validate; "
            "give more text, --val-input, or a smaller --val-fraction or --val-documents"
        )


def _is_copy(source: Source, document: SplitDocument) -> bool:
    """Whether a document before it has the same text; a pass over the source, which only small ones ever need."""
    for place, text in walk(source, TRAIN, None):
        if place >= document.place:
            return False
        if text == document.text:
            return True
    return False


def _with_own_validation(
    source: Source, rule: SplitRule, start: Place | None, counts: tuple[int, int], enough: Callable[[], bool]
) -> Iterator[SplitDocument]:
    done: dict[str, int] = dict(zip((TRAIN, VAL), counts, strict=True))
    for side in (TRAIN, VAL):
        if start is not None and start.side == VAL and side == TRAIN:
            continue
        for place, text in walk(source, side, start):
            if done[side] == rule.limit or (side == TRAIN and enough()):
                break
            done[side] += 1
            yield SplitDocument(side, text, place)
    for side, what in ((TRAIN, "training"), (VAL, "validation")):
        if not done[side]:
            raise UserError(f"the source '{source.name}' has no {what} text")


def _below(fraction: float) -> Callable[[str], bool]:
    return lambda text: draw(text, "danalab split 1") < fraction


def _first(source: Source, n: int, start: Place | None) -> Callable[[str], bool]:
    chosen: set[bytes] = set()

    def validates(text: str) -> bool:
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if len(chosen) < n:
            chosen.add(digest)
        return digest in chosen

    if start is not None:  # going on: choose again from what was read before
        for place, text in walk(source, TRAIN, None):
            if len(chosen) == n or place > start:
                break
            validates(text)
    return validates
