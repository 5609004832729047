"""What a layout of data on disk is: a way to recognise, open, describe and verify a folder.

Each layout is a module with a `LAYOUT`; `danalab.data.open.layouts` lists them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.data.dataset import Dataset


@dataclass(frozen=True)
class Finding:
    """Something wrong with a data set."""

    file: str
    """The file, or the folder."""
    reason: str
    position: tuple[int, ...] | None = None
    """(sequence, token) in an array, (token,) in a stream; None for the file as a whole."""

    def __str__(self) -> str:
        where = "" if self.position is None else f" [{', '.join(map(str, self.position))}]"
        return f"{self.file}{where}: {self.reason}"


@dataclass(frozen=True)
class Layout:
    """One way to lay out a data set; every function takes its folder."""

    name: str
    """As shown to people, e.g. "shards"."""
    matches: Callable[[Path], bool]
    """Whether the folder looks like it: a glance at names, nothing is opened."""
    splits: Callable[[Path], list[str]]
    """Names of its splits."""
    open: Callable[[Path, str], Dataset]
    """Open one split; `UserError` when it cannot be read."""
    verify: Callable[[Path], Iterator[Finding]]
    """Compare every file with its recorded hash; yields all faults."""
    facts: Callable[[Path], dict[str, Any]] = lambda _: {"source": None, "documents": {}, "text_bytes": {}}
    """Additions to `describe`: `source` (name, licence, ...) or None, and `documents` and `text_bytes` by split."""
