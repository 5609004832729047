"""Packages whose public names are imported when they are first used; the standard library is enough."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` by the `from .MODULE import NAME as NAME` in the `.pyi` beside `file`."""
    tree = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        alias.asname or alias.name: ("." * node.level + (node.module or ""), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        value = getattr(import_module(module, package), original)
        setattr(sys.modules[package], name, value)  # the next use does not come here
        return value

    return get, lambda: sorted(homes), sorted(homes)
