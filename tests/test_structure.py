"""The structure of the package: layers, no import circles, small rooms, and the module map of CONTRIBUTING.md.

Imports are read from the source, those under TYPE_CHECKING included. A name that is imported from a package counts as
an import of the module that defines it.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from danalab_annexes import MODULES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LAYERS = [
    "optim", "colors", "scaling", "models", "data", "inference", "train", "chat", "post", "serve", "sweep", "ladder",
    "report", "judge", "cli",
]  # fmt: skip
"""Lowest first: a room may use those before it. `chat` is what evaluation, post-training and server share."""
RANK = {layer: number for number, layer in enumerate(LAYERS)} | {"showcase": LAYERS.index("judge")}
COMMON = {"errors", "files", "lazy", "moved", "plugins", "processes", "registry"}
THEORY = {"theory", "optim", "colors"} | COMMON
LARGEST_FOLDER, LONGEST_FILE, SMALLEST_FILE = 20, 500, 40
ALONE = {"moved": "`import danalab` does without it"}
"""Modules below the smallest size with one importer, and why they are files of their own."""


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted((SOURCE / "danalab").rglob("*.py"))}
ANNEXES = {module_name(path): path for path in sorted((SOURCE / "danalab_annexes").rglob("*.py"))}
PACKAGES = {name for name, path in FILES.items() if path.name == "__init__.py"}
ROOMS = sorted(name.removeprefix("danalab.") for name in PACKAGES - {"danalab"} if "_shared" not in name)


class Source(NamedTuple):
    """What the tests need of a file: its tree takes some hundred times the memory."""

    imports: list[tuple[str, str, str]]
    """(module, name, name here) of every import; the name is "" for `import module`."""
    classes: list[str]
    docstring: str


@cache
def source(path: Path) -> Source:
    package = module_name(path) if path.stem == "__init__" else module_name(path).rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(alias.name, "", alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            imports += [(module, alias.name, alias.asname or alias.name) for alias in node.names]
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return Source(imports, classes, ast.get_docstring(tree) or "")


@cache
def face(package: str) -> dict[str, str]:
    """Public name -> module that defines it, of a package's `__init__.pyi` or `__init__.py`."""
    stub = FILES[package].with_suffix(".pyi")
    named = source(stub if stub.exists() else FILES[package]).imports
    return {here: target(module, name) for module, name, here in named if module in FILES and module != package}


def target(module: str, name: str) -> str:
    if f"{module}.{name}" in FILES:
        return f"{module}.{name}"
    return face(module).get(name, module) if module in PACKAGES else module


@cache
def all_imports() -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports."""
    return {
        name: {target(module, of) for module, of, _ in source(path).imports if module in FILES} - {name}
        for name, path in FILES.items()
    }


def room(module: str) -> str:
    """The first folder or file below `danalab`."""
    return f"{module}.".split(".")[1]


def circles() -> list[list[str]]:
    """Sets of modules that import each other, directly or not (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(all_imports()[name] - PACKAGES):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            component = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    for name in FILES:
        if name not in index and name not in PACKAGES:
            visit(name)
    return found


def test_no_two_public_classes_share_a_name():
    """Each verb's `Flags` apart."""
    places: dict[str, list[str]] = {}
    for name, path in FILES.items():
        for cls in source(path).classes:
            if not cls.startswith("_") and cls != "Flags":
                places.setdefault(cls, []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_modules_import_each_other_in_a_circle():
    assert circles() == []


def test_no_room_imports_one_above_it():
    edges = {(name, other) for name, others in all_imports().items() for other in others if room(name) and room(other)}
    upward = {
        (name, other)
        for name, other in edges
        if (room(name) in RANK and room(other) in RANK and RANK[room(other)] > RANK[room(name)])
        or (room(name) in COMMON and room(other) not in COMMON)
        or (room(name) == "theory" and room(other) not in THEORY)
        or (room(other) == "theory" and room(name) != "theory")
    }
    assert sorted(f"{name} -> {other}" for name, other in upward) == []


def test_every_room_has_a_layer():
    assert {room(name) for name in FILES if room(name)} - {"__main__"} == set(RANK) | COMMON | {"theory"}


def test_the_core_knows_no_annex():
    known = [name for name, path in FILES.items() for module, *_ in source(path).imports if module in ANNEXES]
    assert known == []


def test_folders_and_files_stay_small():
    folders = {path.parent for path in FILES.values()}
    modules = {folder: sum(path.stem != "__init__" for path in folder.glob("*.py")) for folder in folders}
    assert {str(folder): n for folder, n in modules.items() if n > LARGEST_FOLDER and folder.name != "cli"} == {}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in {**FILES, **ANNEXES}.items()}
    assert {name: n for name, n in lines.items() if n > LONGEST_FILE} == {}


def test_a_small_module_has_several_users():
    users = {name: sum(name in others for others in all_imports().values()) for name in FILES}
    alone = {
        name.removeprefix("danalab.")
        for name, path in FILES.items()
        if users[name] <= 1
        and name not in PACKAGES
        and len(path.read_text(encoding="utf-8").splitlines()) < SMALLEST_FILE
        and path.stem != "__main__"
        and room(name) != "cli"
    }
    assert alone - ALONE.keys() == set()


def first_sentence(name: str) -> str:
    """Of a room's docstring, up to the first period or colon that ends a line or a sentence."""
    text = " ".join(source(FILES[name]).docstring.split())
    return re.split(r"(?<=\.)\s", text)[0]


def module_map() -> str:
    """The table of packages, as CONTRIBUTING.md shows it; a folder's docstring tells of the folders in it."""
    names = sorted((name for name in ROOMS if "." not in name), key=lambda name: -RANK.get(name, -1))
    rows = [f"| `{name}` | {first_sentence(f'danalab.{name}').replace('|', '/')} |" for name in names]
    return "\n".join(["| package | what is in it |", "| --- | --- |", *rows])


def annex_map() -> str:
    """The table of annexes, as CONTRIBUTING.md shows it."""
    rows = [f"| {kind} | {', '.join(f'`{name}`' for name in modules)} |" for kind, modules in sorted(MODULES.items())]
    return "\n".join(["| registry of | modules of `danalab_annexes` |", "| --- | --- |", *rows])


MAPS = {"module map": module_map, "annex map": annex_map}
"""Heading of a block of CONTRIBUTING.md -> its content."""


@pytest.mark.parametrize("name", MAPS)
def test_a_map_is_that_of_the_tree(name):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert shown is not None
    assert shown[1] == MAPS[name](), "run: python tests/test_structure.py"


if __name__ == "__main__":
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name, table in MAPS.items():
        text = re.sub(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", rf"\g<1>{table()}\g<2>", text, flags=re.DOTALL)
    (ROOT / "CONTRIBUTING.md").write_text(text, encoding="utf-8")
