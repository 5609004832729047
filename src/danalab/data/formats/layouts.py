"""The shapes in which a data set may lie in a folder, and who reads each.

A layout is a module of this package with a `LAYOUT`. `layout_of` asks each in turn; the first that recognises the
folder opens, describes and verifies it. To add one, write the module and name it in `_HOMES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danalab.data.dataset import Dataset

_HOMES = (
    "danalab.data.formats.prepared",
    "danalab.data.formats.raw_bin",
    "danalab.data.preparation.download",
    "danalab.data.formats.arrays.layout",
)


@dataclass(frozen=True)
class Fault:
    """Something wrong with a data set."""

    place: str
    """The file, or the folder."""
    reason: str
    """What is wrong with it, and where."""

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True)
class Layout:
    """One way to lay out a data set; every function takes its folder."""

    name: str
    """What people call it, e.g. "shards"."""
    found_in: Callable[[Path], bool]
    """Whether the folder looks like it: a glance at names, nothing is opened."""
    splits: Callable[[Path], list[str]]
    """Names of its splits."""
    open: Callable[[Path, str], Dataset]
    """Open one split; `UserError` when it cannot be read."""
    facts: Callable[[Path], dict[str, Any]]
    """What `describe` adds: `source` (name, licence, ...) or None, and `documents` and `text_bytes` by split."""
    verify: Callable[[Path], Iterator[Fault]]
    """Read everything through; yields each fault, going on past the first."""


@lru_cache(maxsize=1)
def layouts() -> tuple[Layout, ...]:
    """All layouts, in the order in which they are asked."""
    return tuple(import_module(home).LAYOUT for home in _HOMES)


def layout_of(folder: Path) -> Layout | None:
    """The layout of the data set in `folder`; None when there is none."""
    if not folder.is_dir():
        return None
    return next((layout for layout in layouts() if layout.found_in(folder)), None)
