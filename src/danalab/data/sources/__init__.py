"""Sources of text: one small class each, by name in `SOURCES`."""

from collections.abc import Sequence
from pathlib import Path

from danalab.data.sources.base import TRAIN, VAL, Place, Source, walk
from danalab.data.sources.hub import CORPORA
from danalab.data.sources.synthetic import SyntheticSource
from danalab.data.sources.text import StdlibSource, TextSource
from danalab.tables import lookup

SOURCES: dict[str, type[Source]] = {
    **{source.name: source for source in (StdlibSource, SyntheticSource, TextSource, *CORPORA)},
    **{alias: source for source in CORPORA for alias in source.aliases},
}
"""Name, or a name of the literature's scripts -> the source."""

__all__ = [
    "SOURCES",
    "TRAIN",
    "VAL",
    "Place",
    "Source",
    "StdlibSource",
    "SyntheticSource",
    "TextSource",
    "make_source",
    "walk",
]


def make_source(
    name: str, inputs: Sequence[str | Path] = (), val_inputs: Sequence[str | Path] = ()
) -> Source:
    """The source called `name`, or somebody's own class, FILE.py:NAME; sources of files read `inputs`, `val_inputs`."""
    return lookup(SOURCES, name, "file, folder or data source", own=True).build(inputs, val_inputs)
