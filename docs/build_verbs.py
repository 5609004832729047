"""Write the verbs of `danalab --help` into README (by group) and docs/commands.md: python docs/build_verbs.py"""

import re
from pathlib import Path

from danalab.cli.app import GROUPS

ROOT = Path(__file__).parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "commands.md"
BLOCK = re.compile(r"<!-- verbs -->\n.*?<!-- end -->", re.DOTALL)


def groups() -> str:
    """A row for each group."""
    rows = [f"| {group} | {', '.join(f'`{verb}`' for verb in verbs)} |" for group, verbs in GROUPS.items()]
    return _marked(["| to | `danalab ...` |", "| --- | --- |", *rows])


def verbs() -> str:
    """A row for each verb, with what it does."""
    rows = [
        f"| {group * (number == 0)} | `danalab {verb}` | {what} |"
        for group, verbs in GROUPS.items()
        for number, (verb, what) in enumerate(verbs.items())
    ]
    return _marked(["| to | verb | does |", "| --- | --- | --- |", *rows])


def _marked(lines: list[str]) -> str:
    return "\n".join(["<!-- verbs -->", *lines, "<!-- end -->"])


if __name__ == "__main__":
    for page, block in ((README, groups()), (PAGE, verbs())):
        page.write_text(BLOCK.sub(lambda _, block=block: block, page.read_text(encoding="utf-8")), encoding="utf-8")
