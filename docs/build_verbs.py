"""Write the verbs of `danalab --help` into docs/commands.md: python docs/build_verbs.py"""

import re
from pathlib import Path

from danalab.cli.app import COMMANDS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "commands.md"
BLOCK = re.compile(r"<!-- verbs -->\n.*?<!-- end -->", re.DOTALL)


def verbs() -> str:
    """A row for each verb, with what it does."""
    rows = [f"| `danalab {verb}` | {summary} |" for verb, (summary, _) in COMMANDS.items()]
    return "\n".join(["<!-- verbs -->", "| command | does |", "| --- | --- |", *rows, "<!-- end -->"])


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(lambda _: verbs(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
