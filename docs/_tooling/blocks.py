"""The code blocks of a page, and what the check does with each.

`<!-- continues: chat.md -->` at the beginning of a page: its blocks run in a copy of the folder that those of chat.md
left. A comment above a block decides where its content does not:

    <!-- not run: needs four GPUs -->    listed with its reason by the check
    <!-- with: --iterations 2 -->        added to each `danalab` command of the block when the check runs it
    <!-- instead: CODE -->               the check runs this, a smaller case of the block; listed by the check
    <!-- before: CODE -->                the check runs this first, in the language of the block
    <!-- file: NAME -->                  the check writes the block to this file
    <!-- from examples/NAME.py -->       an excerpt: each line is a line of the file
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Action = Literal["shell", "python", "excerpt", "file", "not run", "text"]

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)(?P<more>[^\n]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_DIRECTIVE = re.compile(
    r"<!-- ((?:not run: |with: |instead: |before: |file: |from )(?:(?!-->).)*?) -->\s*\Z", re.DOTALL
)
_COMMAND = re.compile(
    r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(danalab|make|pip|python3?|source|bash|sbatch|srun|torchrun|cp|cd|curl) ",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A code block."""

    page: Path
    line: int
    """Of its first line of code, from 1."""
    language: str
    text: str
    directive: str = ""

    @property
    def action(self) -> Action:
        """What the check does."""
        if self.directive.startswith("not run: "):
            return "not run"
        if self.directive.startswith("from "):
            return "excerpt"
        if self.directive.startswith("file: "):
            return "file"
        if self.language == "python":
            return "python"
        is_shell = self.language in ("bash", "sh", "console") or (
            not self.language and _COMMAND.search(self.text)
        )
        return "shell" if is_shell else "text"

    @property
    def reason(self) -> str:
        """Why it is not run."""
        return " ".join(self.directive.removeprefix("not run: ").split()) if self.action == "not run" else ""

    @property
    def file(self) -> str:
        """The file of an excerpt, or the one to write."""
        return self.directive.split()[-1] if self.action in ("excerpt", "file") else ""

    @property
    def script(self) -> str:
        """What the check runs, without `before`: a shell script or Python."""
        if self.is_replaced:
            return self.directive.removeprefix("instead: ")
        if self.action == "python":
            return self.text
        lines = self.text.replace("\\\n", " ").splitlines()
        added = self.directive.removeprefix("with: ") if self.directive.startswith("with: ") else ""
        return "\n".join(_with(line.removeprefix("$ "), added) for line in lines)

    @property
    def is_replaced(self) -> bool:
        """The check runs a smaller case."""
        return self.directive.startswith("instead: ")

    @property
    def before(self) -> str:
        """What the check runs before the block, in its language."""
        return self.directive.removeprefix("before: ") if self.directive.startswith("before: ") else ""

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def _with(line: str, added: str) -> str:
    if not added or not line.startswith("danalab "):
        return line
    command, mark, comment = line.partition(" #")
    return f"{command.rstrip()} {added}{mark}{comment}"


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        directive = _DIRECTIVE.search(text[: match.start()].rstrip())
        found.append(
            Block(
                page,
                text[: match.start("text")].count("\n") + 1,
                match["language"],
                re.sub(
                    rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE
                ),  # a block of a list is indented
                directive[1].strip() if directive else "",
            )
        )
    return found


def continued(page: Path) -> Path | None:
    """The page in whose folder the blocks of `page` run."""
    found = re.search(r"^<!-- continues: (\S+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return page.parent / found[1] if found else None
