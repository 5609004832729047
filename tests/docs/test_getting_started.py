"""The commands of docs/getting-started.md run as written, from a fresh folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def commands() -> list[str]:
    """The commands of the code blocks after the demo, without placeholders."""
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8").split("## A first run")[1]
    blocks = re.findall(r"```\n(.*?)```", page, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("danalab ")]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_commands_of_the_page_run_in_order(tmp_path):
    assert len(commands()) >= 8
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    for command in commands():
        words = [sys.executable, "-m", "danalab", *shlex.split(command)[1:]]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    assert (tmp_path / "runs" / "comparison").exists()


def test_the_plan_on_the_page_is_the_printed_one(capsys):
    from danalab.cli.app import main

    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    shown = re.search(r"```\n(model .*?)```", page, re.DOTALL)
    assert shown is not None
    assert main(["plan", "--arch", "enoki", "--opt", "adana", "--heads", "3"]) == 0
    assert shown[1] in capsys.readouterr().out
