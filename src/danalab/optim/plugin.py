"""Optimizers from outside the package, by address: `FILE.py:NAME` or `module:NAME`.

NAME is a class or a function, called as `NAME(groups, lr=..., **settings)`. Its settings are the other parameters of
its signature, with their defaults. Its weight decay, if it has one, is expected to be multiplied by the learning rate.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

from danalab.errors import UserError, nearest
from danalab.optim.catalogue import Row
from danalab.optim.values import OptimizerSpec, settings_of


def plugin_spec(row: Row) -> OptimizerSpec:
    """The spec of an optimizer by its address, which is the row's name.

    Raises:
        UserError: no such file, module or name; it fails as it is imported; or it takes no `lr`.
    """
    module, name = _load(row.name)
    known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    if name not in known:
        raise UserError(f"optimizer '{row.name}': there is no '{name}' in it{nearest(name, known)}")
    build = getattr(module, name)
    first, *others = inspect.signature(build).parameters
    if "lr" not in others:
        raise UserError(f"optimizer '{row.name}': it takes no lr; it must be callable as {name}(groups, lr=...)")
    settings = settings_of(build, dict.fromkeys([first, *others], f"setting of {name}"))
    settings.pop(first, None)
    facts = {each.name: getattr(row, each.name) for each in fields(row)}
    return OptimizerSpec(**facts, build=build, settings=settings)


def source_digest(address: str) -> str:
    """SHA-256 [hex] of the file that an address names: a changed file is another optimizer."""
    module, _ = _load(address)
    file = inspect.getsourcefile(module)
    if file is None:
        raise UserError(f"optimizer '{address}': {module.__name__} has no source file")
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _load(address: str) -> tuple[ModuleType, str]:
    place, _, name = address.rpartition(":")
    if place.endswith(".py"):
        return _from_file(Path(place)), name
    try:
        return importlib.import_module(place), name
    except ModuleNotFoundError as error:
        raise UserError(f"optimizer '{address}': no module '{error.name}'; a file is written FILE.py:NAME") from None


def _from_file(path: Path) -> ModuleType:
    """The module of a file, imported once, under a name that only this path has."""
    where = str(path.resolve())
    name = f"danalab_plugin_{hashlib.sha256(where.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise UserError(f"optimizer '{path}': there is no such file")
    found = importlib.util.spec_from_file_location(name, where)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{path}: {type(error).__name__} as it was imported: {error}") from error
    return module
