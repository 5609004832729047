"""Sources of text: one small class each, registered by name in `SOURCES`."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from danalab.data.sources.base import TRAIN, VAL, Source, SourcePosition, walk
from danalab.data.sources.hub import ALIASES, CORPORA, HubSource
from danalab.data.sources.synthetic import SyntheticSource
from danalab.data.sources.text import StdlibSource, TextSource
from danalab.errors import UserError
from danalab.registry import Registry

SOURCES: Registry[type[Source]] = Registry("data source")
for _source in (StdlibSource, SyntheticSource, TextSource, *CORPORA):
    SOURCES.add(_source.name, _source, *ALIASES.get(_source.name, ()))

__all__ = [
    "SOURCES",
    "TRAIN",
    "VAL",
    "HubSource",
    "SourcePosition",
    "Source",
    "StdlibSource",
    "SyntheticSource",
    "TextSource",
    "command_for_texts",
    "make_source",
    "walk",
]


def make_source(name: str, inputs: Sequence[str | Path] = (), val_inputs: Sequence[str | Path] = ()) -> Source:
    """The source called `name`; sources of files read `inputs` and `val_inputs`."""
    if name not in SOURCES and os.path.exists(name):
        raise UserError(f"{name} is no source of data; of your own texts: {command_for_texts(name)}")
    return SOURCES.get(name).build(inputs, val_inputs)


def command_for_texts(path: str | Path) -> str:
    """The command that makes a data set of a file or folder of texts."""
    return f"danalab data prepare text --input {shlex.quote(str(path))}"
