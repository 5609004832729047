"""Every place in `src` where a GPU takes another way, and what runs that way without one.

    conditions and tables that name a device (`is_cuda`, `device.type`, "cuda", "nccl"), and calls of `torch.cuda`
    -> file::function: source -> tests on a device of tests/gpu, or a section of gpu-check

`python docs/_tooling/gpu_branches.py` prints them. `tests/gpu/branches.json` keeps the second column, and
`tests/gpu/test_branches.py` holds it complete. `--write DATA` fills it from a coverage file of the tests of a GPU, run
with PRETEND_GPU=1 and `dynamic_context = test_function`; entries that still hold are kept.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE, ANNEXES = ROOT / "src" / "danalab", ROOT / "src" / "danalab_annexes"
TABLE = ROOT / "tests" / "gpu" / "branches.json"
DEVICE = re.compile(
    r"\bis_cuda\b|\btorch\.cuda\b|\bdevice\.type\b|\bdevice_type\b|\bhas_triton\b|\bGradScaler\b"
    r"|['\"](cuda|nccl)\b|\bon_gpu\b|\bon_host\b"
)
"""What names a device."""


class Branch(NamedTuple):
    """A place."""

    key: str
    """file::function: source of the condition or call."""
    file: Path
    lines: tuple[int, ...]
    """Of the condition or call."""


def branches() -> list[Branch]:
    """All of them, in order; one that a function repeats is one."""
    found: dict[str, Branch] = {}
    for file in sorted([*SOURCE.rglob("*.py"), *ANNEXES.rglob("*.py")]):
        text = file.read_text(encoding="utf-8")
        if not DEVICE.search(text):
            continue
        place = file.relative_to(SOURCE if SOURCE in file.parents else ANNEXES.parent)
        for function, node in _places(ast.parse(text), ""):
            key = f"{place}::{function}: {ast.unparse(node)[:160]}"
            lines = tuple(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            earlier = found[key].lines if key in found else ()
            found[key] = Branch(key, file, earlier + lines)
    return list(found.values())


def _places(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr]]:
    """(function, condition, table or call) below a node; nothing within one."""
    for child in ast.iter_child_nodes(node):
        name = function
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{function}.{child.name}".lstrip(".")
        test = getattr(child, "test", None)  # if, while, a conditional expression, an assertion
        if isinstance(child, ast.expr) and _names_a_device(child):
            yield name, child
            continue
        if isinstance(test, ast.expr) and DEVICE.search(ast.unparse(test)):
            yield name, test
            child = [other for other in ast.iter_child_nodes(child) if other is not test]
            child = ast.Module(child, [])  # pyright: ignore[reportArgumentType] - only to be walked
        yield from _places(child, name)


def _names_a_device(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).startswith("torch.cuda.")
    if isinstance(node, ast.Dict):
        return any(isinstance(key, ast.Constant) and key.value == "cuda" for key in node.keys)
    if isinstance(node, ast.Attribute):
        return node.attr == "is_cuda"
    return isinstance(node, ast.Compare) and bool(DEVICE.search(ast.unparse(node)))


def covered(data: Path) -> dict[str, list[str]]:
    """Key -> tests that execute it, three at most, by a coverage file."""
    from coverage import CoverageData

    stored = CoverageData(str(data))
    stored.read()
    tests: dict[str, list[str]] = {}
    for each in branches():
        contexts = stored.contexts_by_lineno(str(each.file))
        names = {name for number in each.lines for name in contexts.get(number, ()) if name}
        tests[each.key] = sorted({name.split("[")[0].rpartition(".")[2] for name in names})[:3]
    return tests


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="DATA", nargs="+", help="coverage files")
    flags = parser.parse_args()
    table: dict[str, list[str]] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    if flags.write:
        measured = [covered(data) for data in flags.write]
        table = {
            each.key: table.get(each.key) or sorted({name for one in measured for name in one[each.key]})[:3]
            for each in branches()
        }
        TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    for each in branches():
        print(f"{each.key}\n    {', '.join(table.get(each.key, [])) or 'NOT COVERED'}")


if __name__ == "__main__":
    main()
