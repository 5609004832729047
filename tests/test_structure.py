"""Imports of the package point one way, and in no circle.

They are read from the source, those under TYPE_CHECKING and in functions included. A name that is imported from a
package counts as an import of the module that defines it.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
LAYERS = [
    {"optim"},
    {"models"},
    {"scaling"},
    {"data"},
    {"inference", "train"},
    {"chat", "post", "serve"},
    {"experiments", "theory_studies"},
    {"cli"},
]
"""Lowest first: a room may use its own layer and those before it."""
RANK = {room: rank for rank, layer in enumerate(LAYERS) for room in layer}
COMMON = {path.stem for path in (SOURCE / "danalab").glob("*.py")} - {
    "__init__",
    "__main__",
    "theory_studies",
}
"""Files beside the rooms: every room may use them, and they use no room."""
PUBLIC = {
    ("danalab.scaling", "danalab.train.config.resolve"),
    ("danalab.scaling", "danalab.train.config.train_config"),
}
"""The one way up: `danalab.scaling.plan`, a public name of what `danalab.train` does."""


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted((SOURCE / "danalab").rglob("*.py"))}
PACKAGES = {name for name, path in FILES.items() if path.name == "__init__.py"}


@cache
def imports(path: Path) -> list[tuple[str, str, str]]:
    """(module, name, name here) of every import; the name is "" for `import module`."""
    package = module_name(path).split(".")
    if path.stem != "__init__":
        package.pop()
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, "", alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            found += [(module, alias.name, alias.asname or alias.name) for alias in node.names]
    return found


@cache
def face(package: str) -> dict[str, str]:
    """Public name -> module that defines it, of a package's `__init__.py`."""
    return {
        here: target(module, name)
        for module, name, here in imports(FILES[package])
        if module in FILES and module != package
    }


def target(module: str, name: str) -> str:
    if f"{module}.{name}" in FILES:
        return f"{module}.{name}"
    return face(module).get(name, module) if module in PACKAGES else module


@cache
def edges() -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports."""
    return {
        name: {target(module, of) for module, of, _ in imports(path) if module in FILES} - {name}
        for name, path in FILES.items()
    }


def room(module: str) -> str:
    """The folder or file below `danalab`."""
    return f"{module}.".split(".")[1]


def may_use(above: str, below: str) -> bool:
    if below in COMMON or above == below:
        return True
    if above == "theory":
        return below in {"optim", "scaling", "theory_studies"}
    if below == "theory":
        return above == "cli"
    return RANK.get(above, -1) >= RANK[below]


def test_every_room_has_a_layer():
    assert {room(name) for name in FILES if room(name)} - COMMON - {"theory", "__main__"} <= RANK.keys()


def test_no_room_imports_one_above_it():
    upward = [
        f"{name} -> {other}"
        for name, others in edges().items()
        for other in sorted(others)
        if room(other) and room(name) != "__main__" and not may_use(room(name), room(other))
        if (name, other) not in PUBLIC
    ]
    assert upward == []


def reached(name: str) -> set[str]:
    """The modules that a module imports, and those that these import, and so on."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = edges()[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_no_modules_import_each_other_in_a_circle():
    circles = {name for name in edges() if name in reached(name)}
    assert circles == set()
