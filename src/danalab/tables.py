"""Things that are chosen by name: a table is a dict; somebody's own code is FILE.py:NAME or module:NAME.

A value of a table may be text, "module:NAME", which is imported when it is looked up.
"""

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from danalab.errors import UserError, nearest


def word_of(name: str) -> str:
    """A name without case, underscores and hyphens, which do not matter."""
    return re.sub("[-_]", "", name.lower())


def key_of(table: Mapping[str, Any], name: str, kind: str) -> str:
    """The key of `table` that `name` means; case, underscores and hyphens do not matter.

    UserError: there is none; the message has the nearest and all. `kind` is what an item is called, e.g. "optimizer".
    """
    normal = {word_of(key): key for key in table}
    word = word_of(name)
    if word not in normal:
        raise UserError(f"unknown {kind} '{name}'{nearest(name.lower(), table)}; known: {', '.join(table)}")
    return normal[word]


def lookup(table: Mapping[str, Any], name: str, kind: str, *, own: bool = False) -> Any:
    """The item of `table` called `name`; with `own`, also what FILE.py:NAME or module:NAME names. See `key_of`."""
    if own and ":" in name:
        return load(name)
    item = table[key_of(table, name, kind)]
    return load(item) if isinstance(item, str) else item


def load(address: str) -> Any:
    """The object at FILE.py:NAME or module:NAME. UserError: there is none, or its import fails."""
    place, _, name = address.rpartition(":")
    module = _module_of_file(Path(place)) if place.endswith(".py") else _module_by_name(place, address)
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(f"'{address}': there is no '{name}' in it{nearest(name, public)}")
    return getattr(module, name)


def source_digest(address: str) -> str:
    """SHA-256 [hex] of the file that an address names: a changed file is other code."""
    place = address.rpartition(":")[0]
    file = place if place.endswith(".py") else str(_module_by_name(place, address).__file__)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _module_by_name(name: str, address: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"'{address}': no module '{error.name}'; a file is written FILE.py:NAME") from None


def _module_of_file(path: Path) -> ModuleType:
    """The module of a file, imported once, under a name that only this path has."""
    name = f"danalab_file_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"{path}: no such Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{path}: {type(error).__name__} as it was imported: {error}") from error
    return module
