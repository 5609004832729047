"""Write README's table of verbs, from the list that `danalab --help` prints: python docs/build_verbs.py"""

import re
from pathlib import Path

from danalab.cli.app import GROUPS

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"<!-- verbs -->\n.*?\n<!-- end -->", re.DOTALL)


def block() -> str:
    """The table between its marks."""
    rows = [
        f"| {group * (number == 0)} | `danalab {verb}` | {what} |"
        for group, verbs in GROUPS.items()
        for number, (verb, what) in enumerate(verbs.items())
    ]
    return "\n".join(["<!-- verbs -->", "|  | verb | does |", "| --- | --- | --- |", *rows, "<!-- end -->"])


if __name__ == "__main__":
    README.write_text(BLOCK.sub(lambda _: block(), README.read_text(encoding="utf-8")), encoding="utf-8")
