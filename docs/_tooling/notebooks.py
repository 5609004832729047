"""Notebooks of the tutorials, from the pages themselves: what the check runs are cells of code, the rest is text.

A page with the comment `<!-- notebook -->` is a tutorial.
"""

import re
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from _tooling.blocks import Block, blocks

MARK = "<!-- notebook -->"
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)


def notebook(page: Path) -> nbformat.NotebookNode:
    """A page as a notebook without outputs."""
    lines = page.read_text(encoding="utf-8").splitlines()
    cells, start = [], 0
    for block in blocks(page):
        if block.action in ("python", "shell"):
            cells += [*_text(lines[start : block.line - 2]), _code(block)]
            start = block.line + len(block.text.splitlines())
    cells += _text(lines[start:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # random ones would change with each build
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    made = new_notebook(cells=cells, metadata=metadata)
    nbformat.validate(made)
    return made


def _text(lines: list[str]) -> list[Any]:
    text = _COMMENT.sub("", "\n".join(lines)).strip()
    return [new_markdown_cell(text)] if text else []


def _code(block: Block) -> Any:
    text = block.text.rstrip()
    return new_code_cell(text if block.action == "python" else f"%%bash\n{text}")


def tutorials(folder: Path) -> list[Path]:
    """The pages that are tutorials."""
    return [page for page in sorted(folder.rglob("*.md")) if MARK in page.read_text(encoding="utf-8")]


def write(pages: Path, reference: Path) -> None:
    """Write the notebook of each tutorial into `reference`/notebooks."""
    folder = reference / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    for page in tutorials(pages):
        nbformat.write(notebook(page), folder / f"{page.stem}.ipynb")


def link(app: Any, name: str, source: list[str]) -> None:
    """Sphinx's hook for the text of a page: a tutorial offers its notebook below the title."""
    if MARK in source[0]:
        line = f"{{download}}`This page as a notebook </reference/notebooks/{Path(name).name}.ipynb>`"
        source[0] = source[0].replace(MARK, line, 1)
