"""The commands and the Python of docs/chat.md and of the pages that go on from it run as written, in a fresh folder."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}


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


def run(folder: Path, command: str) -> str:
    """The standard output of a command of a page."""
    done = subprocess.run(
        words_of(command), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    return done.stdout


def words_of(command: str) -> list[str]:
    return [sys.executable, "-m", "danalab", *shlex.split(command.split(" # ")[0])[1:]]


def commands_of(text: str) -> list[str]:
    """The commands in blocks of code."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    shell = [block.replace("\\\n", " ") for language, block in blocks if language in ("", "bash")]
    lines = [line for block in shell for line in block.splitlines()]
    return [line for line in lines if line.startswith("danalab ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of someone who has followed docs/chat.md step by step."""
    made = tmp_path_factory.mktemp("walk")
    steps = PAGE.split("## Step by step")[1].split("## Conversations")[0]
    (made / "chats.jsonl").write_text(re.findall(r"```json\n(.*?)```", steps, re.DOTALL)[0])
    commands = commands_of(steps)
    assert len(commands) == 8
    for command in commands:
        run(made, command)
    return made


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_page_run_in_order(folder):
    assert (folder / "runs" / "export" / "config.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", ["rl", "evaluation"])
def test_the_commands_of_its_neighbours_run(folder, page):
    commands = commands_of((ROOT / "docs" / f"{page}.md").read_text())
    assert len(commands) == 3
    for command in commands:
        run(folder, command)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_of_the_server_run(folder):
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8000)) == 0:
            pytest.skip("port 8000 is in use")
    text = (ROOT / "docs" / "serving.md").read_text()
    (folder / "speedrun").mkdir()
    (folder / "speedrun" / "rl").symlink_to(folder / "runs" / "rl")
    (folder / "keys.txt").write_text("secret\n")
    local, *_ = served = [line for line in commands_of(text) if line.startswith("danalab serve")]
    in_network = served[-1]
    in_terminal, seeded = (line for line in commands_of(text) if line.startswith("danalab chat"))
    assert run(folder, in_terminal)  # without a terminal: the standard input is empty
    assert run(folder, seeded) == run(folder, seeded)
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for command, key in ((local, "none"), (in_network, "secret")):
        server = subprocess.Popen(words_of(command), cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        try:
            assert "API http://" in server.stdout.readline()
            exec(code.replace('"none"', repr(key)), {})
        finally:
            server.terminate()
            server.communicate()
        assert server.returncode == 0
