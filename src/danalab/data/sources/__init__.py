"""Sources of text: one small class each, registered by name in `SOURCES`."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from danalab.data.sources.base import TRAIN, VAL, Source, SourcePosition, walk
from danalab.data.sources.synthetic import SyntheticSource
from danalab.data.sources.text import StdlibSource, TextSource
from danalab.errors import UserError
from danalab.registry import Registry

SOURCES: Registry[type[Source]] = Registry("data source")
for _source in (StdlibSource, SyntheticSource, TextSource):
    SOURCES.add(_source.name, _source)

__all__ = [
    "SOURCES",
    "TRAIN",
    "VAL",
    "SourcePosition",
    "Source",
    "StdlibSource",
    "SyntheticSource",
    "TextSource",
    "command_for_texts",
    "hub_source",
    "make_source",
    "walk",
]


def make_source(name: str, inputs: Sequence[str | Path] = (), val_inputs: Sequence[str | Path] = ()) -> Source:
    """The source called `name`; sources of files read `inputs` and `val_inputs`."""
    if name not in SOURCES and os.path.exists(name):
        raise UserError(f"{name} is no source of data; of your own texts: {command_for_texts(name)}")
    return SOURCES.get(name).build(inputs, val_inputs)


def hub_source(name: str) -> type[Source]:
    """The corpus of the hub called `name`."""
    source = SOURCES.get(name)
    if not source.repo:
        hub = ", ".join(each for each in SOURCES.names() if SOURCES.get(each).repo)
        raise UserError(f"the source '{source.name}' is not of the hub: nothing to fetch; of the hub: {hub}")
    return source


def __getattr__(name: str) -> type[Source]:
    """`HubSource`, the base class of the hub's corpora, which stood here until version 0.2."""
    if name == "HubSource":
        return next(base for base in SOURCES.get("c4").__mro__ if base.__name__ == name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


def command_for_texts(path: str | Path) -> str:
    """The command that makes a data set of a file or folder of texts."""
    return f"danalab data prepare text --input {shlex.quote(str(path))}"
