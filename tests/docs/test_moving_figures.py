"""The arithmetic of the guide's moving figures is that of Python, and each has its place and its static pictures."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from _tooling import moving
from required_tools import NODE

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = DOCS / "_static" / "figures.js"
CALLS = [
    ("schedule", {"delta": 2, "kappa": 0.5, "t": 1e5}),
    *(
        ("features", {"alpha": 0.6, "beta": 0.0, "batch": 4, "method": m, "steps": 300})
        for m in moving.METHODS
    ),
    ("saved", {"gap": 0.05, "reducible": 1, "slope": 0.15}),
]


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_script_computes_what_python_does():
    program = (
        f"const {{ARITHMETIC}} = require({json.dumps(str(SCRIPT))});"
        "const calls = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify(calls.map(([name, given]) => ARITHMETIC[name](given))));"
    )
    done = subprocess.run(
        [NODE, "-e", program], input=json.dumps(CALLS), capture_output=True, text=True, check=True
    )
    for (name, given), shown in zip(CALLS, json.loads(done.stdout), strict=True):
        assert shown == pytest.approx(getattr(moving, name)(**given), rel=1e-9), (name, given)


def test_each_figure_is_on_one_page_of_the_guide_with_pictures_for_readers_without_scripts():
    names = re.findall(r"^  (\w+): \{\n    controls", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "guide").rglob("*.md")]
    assert names == ["schedule", "features", "saved"]
    for name in names:
        assert sum(f"figures/moving/{name}-light.svg" in page for page in pages) == 1, name
        assert all(
            (DOCS / "figures" / "moving" / f"{name}-{theme}.svg").is_file() for theme in ("light", "dark")
        )
