"""The commands and the Python of docs/chat.md run as written, from a fresh folder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")


def test_the_python_of_the_page_runs():
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    found: dict = {}
    exec(code, found)
    assert found["message"].text == "84"
    assert len(found["ids"]) == len(found["mask"])


def test_the_conversations_of_the_page_are_accepted():
    from danalab.chat.conversations import Conversation

    [lines] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert len([Conversation.from_json(line) for line in lines.splitlines()]) == 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_page_run_in_order(tmp_path):
    steps = PAGE.split("## Step by step")[1].split("## Conversations")[0]
    (tmp_path / "chats.jsonl").write_text(re.findall(r"```json\n(.*?)```", steps, re.DOTALL)[0])
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", steps, re.DOTALL | re.MULTILINE)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("danalab ")]
    assert len(commands) == 8
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    for command in commands:
        words = [sys.executable, "-m", "danalab", *shlex.split(command)[1:]]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    assert (tmp_path / "runs" / "export" / "config.json").exists()
