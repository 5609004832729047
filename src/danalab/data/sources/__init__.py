"""Sources of text: one small class each, registered by name in `SOURCES`."""

from collections.abc import Sequence
from pathlib import Path

from danalab.data.sources.base import TRAIN, VAL, Place, Source, walk
from danalab.data.sources.catalogue import ALIASES, CORPORA
from danalab.data.sources.hub import HubSource
from danalab.data.sources.stdlib import StdlibSource
from danalab.data.sources.synthetic import SyntheticSource
from danalab.data.sources.text import TextSource
from danalab.registry import Registry

SOURCES: Registry[type[Source]] = Registry("data source")
for _source in (StdlibSource, SyntheticSource, TextSource, *CORPORA):
    SOURCES.add(_source.name, _source, *ALIASES.get(_source.name, ()))

__all__ = [
    "SOURCES",
    "TRAIN",
    "VAL",
    "HubSource",
    "Place",
    "Source",
    "StdlibSource",
    "SyntheticSource",
    "TextSource",
    "make_source",
    "walk",
]


def make_source(name: str, inputs: Sequence[str | Path] = (), val_inputs: Sequence[str | Path] = ()) -> Source:
    """The source called `name`; sources of files read `inputs` and `val_inputs`.

    Raises:
        UserError: unknown name, missing inputs, or inputs for a source that takes none.
    """
    return SOURCES.get(name).build(inputs, val_inputs)
