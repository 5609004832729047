"""danalab chat: commands, terminals that cannot be taken over, editing and Ctrl-C at a real terminal."""

import fcntl
import io
import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from danalab.chat.terminal import ChatSession, answer, talk
from danalab.serve.requests import ChatRequest
from servers import ScriptedEngine, tiny_model


def session(script=lambda question: f"You said: {question}") -> ChatSession:
    model = tiny_model(2048)
    made = ChatSession(model, ChatRequest())
    made._engine = ScriptedEngine(model, script)  # pyright: ignore[reportAttributeAccessIssue]
    return made


def test_no_part_of_an_answer_controls_the_terminal(capsys):
    answer(session(lambda _: "\x1b]0;owned\x07fine \x9b2"), "hi")
    assert capsys.readouterr().out == "\ufffd]0;owned\ufffdfine \ufffd2\n"


def test_a_pipe_gets_answers_alone(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("sum\n"))
    chat = session(lambda _: "<|python_start|>1+1<|python_end|>2")
    talk(chat)
    assert capsys.readouterr().out == "2\n"
    assert chat.turns[1]["content"] == "<<1+1=2>>2"


def test_an_answer_is_written_anew_and_replaces_the_old_one(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("/retry\nhi\n/retry\n/nothing\n/exit\nhi\n"))
    number = iter("123")
    chat = session(lambda question: f"answer {next(number)}")
    talk(chat)
    out, error = capsys.readouterr()
    assert "there is no question to answer again" in error
    assert "no command /nothing; /help lists them" in error
    assert "answer 1\nanswer 2\n" in out
    assert [message["content"] for message in chat.turns] == ["hi", "answer 2"]


PROGRAM = """
import time
from pathlib import Path
from servers import ScriptedEngine, tiny_model
from danalab.chat.terminal import ChatSession, talk
from danalab.serve.requests import ChatRequest
model = tiny_model(4096)
script = lambda question: "long " * 600 if question == "long" else "You said " + question
session = ChatSession(model, ChatRequest())
session._engine = ScriptedEngine(model, script, seconds=0.003)
talk(session)
print("turns", [message["content"][:30] for message in session.turns])
"""


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.slow
def test_a_terminal_edits_lines_and_stops_answers(tmp_path):
    mother, child = pty.openpty()
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "TERM": "xterm-256color",
        "XDG_STATE_HOME": str(tmp_path),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=child, stdout=child, stderr=child, env=environment, preexec_fn=_own_terminal,
    )  # fmt: skip
    os.close(child)
    seen = ""

    def until(text: str, seconds: float = 60) -> None:
        nonlocal seen
        end = time.monotonic() + seconds
        while text not in seen:
            assert time.monotonic() < end, (text, seen[-2000:])
            if select.select([mother], [], [], 0.2)[0]:
                piece = os.read(mother, 65536).decode(errors="replace")
                seen += piece
                if "\x1b[6n" in piece:  # where is the cursor?
                    os.write(mother, b"\x1b[1;1R")

    def send(text: str) -> None:
        nonlocal seen
        seen = ""
        os.write(mother, text.encode())

    try:
        until(">")
        send("heXlo\x1b[D\x1b[D\x7fl\r")  # back to behind the X, which becomes an l
        until("You said hello")
        until("\r\n>")
        send("long\r")
        until("long long")
        send("\x03")  # Ctrl-C
        until(">")
        send("/exit\r")
        until("turns [")
        until("]")
        assert "'hello'" in seen
        assert "'long'" in seen
        assert process.wait(100) == 0
    finally:
        process.kill()
        process.wait()
        os.close(mother)
