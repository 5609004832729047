"""Which documents validate: those whose keyed hash falls below the fraction.

The hash is of the content, so a document that occurs twice is on one side only, and the choice does not depend on the
order or on how many processes work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from danalab.data.sources import Source
from danalab.errors import UserError

TRAIN, VAL = "train", "val"
Labelled = tuple[str, str]
"""Split and text."""


def draw(text: str, key: str) -> float:
    """A number in [0, 1) that depends on the text and the key alone."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64


def labelled(source: Source, val_fraction: float) -> Iterator[Labelled]:
    """The source's documents, each with its split; empty ones are left out.

    Documents of the source's own validation come last. Otherwise the hash decides; if it chose none, the last
    document validates, so that there always is a validation split.

    Raises:
        UserError: fewer than two documents, or none left to train on.
    """
    own = source.iter_validation()
    if own is not None:
        n_train = n_val = 0
        for text in filter(None, source.iter_documents()):
            n_train += 1
            yield TRAIN, text
        for text in filter(None, own):
            n_val += 1
            yield VAL, text
        if not n_train or not n_val:
            raise UserError(f"the source '{source.name}' has no {'validation' if n_train else 'training'} text")
        return
    held: str | None = None  # one document behind, to be able to give the last one to validation
    n_train = n_val = 0
    for text in filter(None, source.iter_documents()):
        if draw(text, "danalab split 1") < val_fraction:
            n_val += 1
            yield VAL, text
            continue
        if held is not None:
            n_train += 1
            yield TRAIN, held
        held = text
    if held is not None:
        split = TRAIN if n_val else VAL
        n_train += split == TRAIN
        yield split, held
    if not n_train:
        raise UserError(
            f"the source '{source.name}' has no document left to train on beside those that validate; "
            "give more text, --val-input, or a smaller --val-fraction"
        )
