"""Names of files and folders that say to which split they belong."""

import re
from typing import NamedTuple

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""Words in names of files and folders -> the split; "test" is read by no run."""
_STEM = re.compile(
    rf"(?:(.+)[._-])?({'|'.join(SPLIT_NAMES)})(?:_text)?(?:_document|_sentence)?(?:[._-](\d+)(?:-of-\d+)?)?"
    r"(?:[._-](u?int(?:8|16|32|64)))?"
)


class SplitName(NamedTuple):
    """The parts of a file's name that say to which split it belongs: PREFIX_SPLIT_NUMBER."""

    prefix: str
    split: str
    """train, val or test."""
    base: str
    """The name without the number and what follows it."""
    number: int
    dtype: str | None
    """Type of the ids of a file without a header, as in `train.uint32.bin`."""


def split_name(stem: str) -> SplitName | None:
    """The parts of a name without its suffix, e.g. `fineweb_train_000001`; None: it names no split."""
    match = _STEM.fullmatch(stem)
    if match is None:
        return None
    base = stem if match[3] is None else stem[: match.start(3)].rstrip("._-")
    return SplitName(match[1] or "", SPLIT_NAMES[match[2]], base, int(match[3] or 0), match[4])
