"""Code from outside the package: objects by their address, and plugins, which add to the registries by name.

    FILE.py:NAME, module:NAME     one object, such as an optimizer: `load_address`
    --plugin FILE.py              a file that registers something when it is imported: `use`
    entry point danalab.plugins   the same of an installed package: a module, or a function that is called

A file is imported once, as a module of its own. The files of --plugin are in $DANALAB_PLUGINS, which the processes of a
command inherit: a registry that lacks a name loads them, the annexes of its kind, and then the entry points (`load`).
"""

import hashlib
import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from danalab.errors import UserError, nearest

log = logging.getLogger(__name__)

ENVIRONMENT = "DANALAB_PLUGINS"
GROUP = "danalab.plugins"
MODULES: dict[str, tuple[str, ...]] = {
    "architecture": ("models.architectures",),
    "callback": ("train.statistics", "train.trackers"),
    "distributed backend": ("train.diloco",),
    "optim command": ("cli.optim_more",),
    "study": ("theory.studies",),
    "weight format": ("models.huggingface.convert",),
}
"""Kind of a registry (`Registry.kind`) -> modules of this package that add to it when they are imported."""

_plugins: dict[str, ModuleType] = {}  # loaded plugins: the path of a file, or the value of an entry point -> its module
_state = {"entry points": False, "loading": ""}


def use(files: Iterable[str | Path]) -> None:
    """Load plugins, in this process and in all that it starts. UserError: no such file, or its import fails."""
    paths = list(dict.fromkeys([*in_use(), *(str(Path(file).resolve()) for file in files)]))
    for path in paths:
        _load(path)
    if paths:
        os.environ[ENVIRONMENT] = os.pathsep.join(paths)


def in_use() -> list[str]:
    """Paths of the files of --plugin, here or in the process that started this one."""
    return [path for path in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if path]


def load(kind: str = "") -> None:
    """Load what has not been loaded: the files in use, the annexes that add to registries of `kind`, and entry points;
    one of these that fails is left out."""
    from importlib.metadata import entry_points

    use(())
    load_annexes(kind)
    if _state["entry points"]:
        return
    _state["entry points"] = True
    for point in entry_points(group=GROUP):
        _state["loading"] = point.value
        try:
            _plugins[point.value] = importlib.import_module(point.module)
            if point.attr:
                point.load()()
        except Exception as error:
            log.warning("plugin %s is left out: %s: %s", point.value, type(error).__name__, error)
        finally:
            _state["loading"] = ""


def loading() -> str:
    """The plugin that is being loaded, which registers something; empty: none."""
    return str(_state["loading"])


def digests() -> dict[str, str]:
    """Plugin -> SHA-256 [hex] of its source."""
    load()
    return {name: _digest(module) for name, module in _plugins.items()}


def load_address(address: str) -> Any:
    """The class or function at FILE.py:NAME or module:NAME. UserError: there is none, or its import fails."""
    module, name = _module_at(address), address.rpartition(":")[2]
    known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    if name not in known:
        raise UserError(f"'{address}': there is no '{name}' in it{nearest(name, known)}")
    return getattr(module, name)


def source_digest(address: str) -> str:
    """SHA-256 [hex] of the file that an address names: a changed file is other code."""
    return _digest(_module_at(address))


def _digest(module: ModuleType) -> str:
    file = inspect.getsourcefile(module)
    if file is None:
        raise UserError(f"plugin {module.__name__} has no source file")
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def load_annexes(kind: str) -> None:
    """Load the annexes that add to registries of `kind`, if they are installed."""
    outer, _state["loading"] = _state["loading"], ""  # an annex is no plugin whose source a run must keep
    try:
        for module in MODULES.get(kind, ()):
            importlib.import_module(f"danalab.{module}")
    finally:
        _state["loading"] = outer


def _load(path: str) -> None:
    if path not in _plugins:
        _state["loading"] = path
        try:
            _plugins[path] = _from_file(Path(path))
        finally:
            _state["loading"] = ""


def _module_at(address: str) -> ModuleType:
    place = address.rpartition(":")[0]
    if place.endswith(".py"):
        return _from_file(Path(place))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise UserError(f"'{address}': no module '{error.name}'; a file is written FILE.py:NAME") from None


def _from_file(path: Path) -> ModuleType:
    """The module of a file, imported once, under a name that only this path has."""
    where = str(path.resolve())
    name = f"danalab_plugin_{hashlib.sha256(where.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{path}: {type(error).__name__} as it was imported: {error}") from error
    return module
