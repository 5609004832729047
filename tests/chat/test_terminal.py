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

from danalab.chat.conversations import Conversation
from danalab.chat.marks import Calculation
from danalab.errors import UserError
from danalab.inference import SamplingParameters
from danalab.serve import ChatSession
from danalab.serve.planner import Delta
from danalab.chat.terminal import Terminal, split_blocks
from servers import ScriptedEngine, tiny_model


def terminal(script=lambda question: f"You said: {question}", lines=()) -> Terminal:
    model = tiny_model(2048)
    given = iter(lines)

    def read() -> str:
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    session = ChatSession(model, ScriptedEngine(model, script), SamplingParameters())  # pyright: ignore[reportArgumentType]
    session.engine.busy = False  # pyright: ignore[reportAttributeAccessIssue]
    return Terminal(session, read)


def test_no_part_of_an_answer_controls_the_terminal(capsys):
    def pieces():
        yield Delta(calculation=Calculation("\x1b[2J1+1", "\x9b2", ()))
        yield Delta("\x1b]0;owned\x07fine", finish_reason="stop")

    terminal().answer(pieces())
    assert capsys.readouterr().out == "[\ufffd[2J1+1 = \ufffd2] \ufffd]0;owned\ufffdfine\n"


@pytest.mark.parametrize("text", ["--5", "\u00b2", "\u0661", "9" * 5000, "9" * 30, "1.5", "-"])
def test_a_seed_that_is_no_number_is_one_line(text):
    with pytest.raises(UserError, match="must be a") as caught:
        terminal().command(f"/seed {text}")
    assert len(str(caught.value)) < 200


def test_commands_change_how_tokens_are_drawn(capsys):
    good = ["/temperature 0.5", "/top-k 7", "/top-p 0.9", "/seed 3", "/temperature"]
    chat = terminal(lines=[*good, "/top-k x", "/top-p 2", "/temperature nan", "exit", "not read"])
    chat.run()
    sampling = chat.session.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.5, 7, 0.9, 3)
    out, error = capsys.readouterr()
    assert out == "0.5\n"
    assert "/top-k is x; it must be a whole number" in error
    assert error.count("\n") == 3


def test_an_answer_is_written_anew_and_replaces_the_old_one(capsys):
    number = iter("123")
    chat = terminal(lambda question: f"answer {next(number)}", ["/retry", "hi", "/retry"])
    chat.run()
    out, error = capsys.readouterr()
    assert "there is no question to answer again" in error
    assert "answer 1\nanswer 2\n" in out
    assert [message.text for message in chat.session.turns] == ["hi", "answer 2"]


def test_a_conversation_is_saved_and_loaded_with_its_calculations(tmp_path, capsys):
    file, other = tmp_path / "chat.jsonl", tmp_path / "other.jsonl"
    other.write_text("mine")
    written = "It is <|python_start|>12*7<|python_end|>84."
    lines = ["/system Be brief.", "sum", f"/save {file}", "more", f"/save {file}", f"/save {other}", "/save"]
    chat = terminal(lambda question: written if question.endswith("sum") else "yes", lines)
    chat.run()
    assert other.read_text() == "mine"
    out, error = capsys.readouterr()
    assert "3 messages saved" in out
    assert "5 messages saved" in out
    assert "exists; choose another name" in error
    assert "/save: a file is missing" in error
    saved = json.loads(file.read_text())["messages"]
    assert saved[0] == {"role": "system", "content": "Be brief."}
    assert saved[2]["content"][1:3] == [{"type": "python", "text": "12*7"}, {"type": "python_output", "text": "84"}]
    again = terminal(lines=[f"/load {file}", "next", "/load nowhere"])
    again.run()
    learned = "It is <|python_start|>12*7<|python_end|><|output_start|>84<|output_end|>84.<|assistant_end|>"
    assert learned in again.session.engine.prompts[-1]  # pyright: ignore[reportAttributeAccessIssue]
    assert again.session.system == "Be brief."
    assert "nowhere" in capsys.readouterr().err


def test_a_question_without_an_answer_is_left_out():
    session = terminal().session
    assert session.load(Conversation.of({"messages": [{"role": "user", "content": "q"}]}))
    assert session.turns == []


def test_an_answer_of_a_calculation_alone_is_remembered():
    chat = terminal(lambda question: "<|python_start|>1+1<|python_end|>", ["sum"])
    chat.run()
    assert [part.type for part in chat.session.turns[1].parts] == ["python", "python_output"]


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
from danalab.serve import ChatSession
from danalab.chat.terminal import Terminal
model = tiny_model(4096)
script = lambda question: "long " * 600 if question == "long" else "You said **" + question.replace("\\n", "+") + "**"
session = ChatSession(model, ScriptedEngine(model, script, seconds=0.003), SamplingParameters())
session.engine.busy = False
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
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TERM": "xterm-256color", "XDG_STATE_HOME": str(tmp_path)}
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
        send("/temper")
        until("/temperature")  # in the menu; a Tab before it is there would be lost
        send("\t 0.25\r")
        until("\x1b[?2004h")
        send("/temperature\r")
        until("0.25")
        send("long\r")
        until("long long")
        send("\x03")  # Ctrl-C
        until(">")
        send("exit\r")
        until("turns [")
        until("]")
        assert "'first\\nsecond'" in seen
        assert "'long'" in seen
        assert process.wait(100) == 0
        history = tmp_path / "danalab" / "chat_history"
        assert "+second" in history.read_text()
        assert history.stat().st_mode & 0o077 == 0
    finally:
        process.kill()
        process.wait()
        os.close(mother)
