"""danalab chat: commands, files, terminals that cannot be taken over, editing and Ctrl-C at a real terminal."""

import fcntl
import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from danalab.chat.terminal import Terminal, split_blocks
from danalab.inference import SamplingParameters
from danalab.serve.chat_model import ChatSession
from servers import ScriptedEngine, tiny_model


def terminal(script=lambda question: f"You said: {question}", lines=()) -> Terminal:
    model = tiny_model(2048)
    given = iter(lines)

    def read() -> str:
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    session = ChatSession(model, SamplingParameters())
    session._engine = ScriptedEngine(model, script)  # pyright: ignore[reportAttributeAccessIssue]
    return Terminal(session, read)


def test_no_part_of_an_answer_controls_the_terminal(capsys):
    terminal(lambda _: "\x1b]0;owned\x07fine \x9b2").answer("hi")
    assert capsys.readouterr().out == "\ufffd]0;owned\ufffdfine \ufffd2\n"


def test_a_pipe_gets_answers_alone(capsys):
    chat = terminal(lambda _: "<|python_start|>1+1<|python_end|>2", ["sum"])
    chat.run()
    assert capsys.readouterr().out == "2\n"
    assert chat.session.turns[1].text == "<<1+1=2>>2"


def test_an_answer_is_written_anew_and_replaces_the_old_one(capsys):
    number = iter("123")
    chat = terminal(lambda question: f"answer {next(number)}", ["/retry", "hi", "/retry"])
    chat.run()
    out, error = capsys.readouterr()
    assert "there is no question to answer again" in error
    assert "answer 1\nanswer 2\n" in out
    assert [message.text for message in chat.session.turns] == ["hi", "answer 2"]


def test_a_conversation_is_saved_and_loaded_with_its_calculations(tmp_path, capsys):
    file = tmp_path / "chat.jsonl"
    written = "It is <|python_start|>12*7<|python_end|>84."
    lines = ["/system Be brief.", "sum", f"/save {file}", f"/save {file}", "/nothing"]
    chat = terminal(lambda question: written, lines)
    chat.run()
    out, error = capsys.readouterr()
    assert "2 messages saved" in out
    assert "exists; choose another name" in error
    assert "no command /nothing" in error
    saved = json.loads(file.read_text())["messages"]
    assert saved[0] == {"role": "system", "content": "Be brief."}
    assert saved[2]["content"] == "It is <<12*7=84>>84."
    again = terminal(lines=[f"/load {file}", "next", "/load nowhere"])
    again.run()
    learned = "It is <|python_start|>12*7<|python_end|><|output_start|>84<|output_end|>84.<|assistant_end|>"
    assert learned in again.session._engine.prompts[-1]  # pyright: ignore[reportAttributeAccessIssue]
    assert again.session.system == "Be brief."
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\n\ntwo", ("one", "two")),
        ("one\ntwo", ("", "one\ntwo")),
        ("```\na\n\nb", ("", "```\na\n\nb")),
        ("```\na\n\nb\n```\n\nc", ("```\na\n\nb\n```", "c")),
        ("\n\n", ("", "")),
        ("", ("", "")),
    ],
)
def test_only_blocks_that_are_complete_are_final(text, expected):
    assert split_blocks(text) == expected


PROGRAM = """
import time
from pathlib import Path
from servers import ScriptedEngine, tiny_model
from danalab.inference import SamplingParameters
from danalab.serve.chat_model import ChatSession
from danalab.chat.terminal import Terminal
model = tiny_model(4096)
script = lambda question: "long " * 600 if question == "long" else "You said **" + question.replace("\\n", "+") + "**"
session = ChatSession(model, SamplingParameters())
session._engine = ScriptedEngine(model, script, seconds=0.003)
Terminal(session).run()
print("turns", [message.text[:30] for message in session.turns])
"""


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.slow
def test_a_terminal_edits_lines_completes_commands_takes_pastes_and_stops_answers(tmp_path):
    pytest.importorskip("prompt_toolkit")
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
        send("heXlo\x1b[D\x1b[D\x1b[D\x7f")  # heXlo, back to behind the X, which goes
        send("\x1b[Cl\r")
        until("You said")
        until(">")
        send("\x1b[200~first\nsecond\x1b[201~")  # a paste
        until("second")
        send("\r")
        until("first+second")
        until("\x1b[?2004h")  # the next line is read: before that the terminal itself echoes what is typed
        send("/he")
        until("/help")  # in the menu; a Tab before it is there would be lost
        send("\t\r")
        until("answer the last question again")
        until("\x1b[?2004h")
        send("long\r")
        until("long long")
        send("\x03")  # Ctrl-C
        until(">")
        send("/exit\r")
        until("turns [")
        until("]")
        assert "'first\\nsecond'" in seen
        assert "'long'" in seen
        assert process.wait(100) == 0
    finally:
        process.kill()
        process.wait()
        os.close(mother)
