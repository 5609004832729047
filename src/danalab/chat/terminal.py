"""Talking to a model in a terminal: lines with editing and history, commands, answers as Markdown as they are written.

Without a terminal (a pipe, a file) lines are read and answers written as they are. What a model writes cannot control
the terminal: escapes become U+FFFD.
"""

import os
import sys
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.chat.conversations import read_conversations
from danalab.errors import UserError, printable
from danalab.files import environment_path, expand_home, write_atomically
from danalab.serve.chat_model import ChatSession
from danalab.serve.planner import Delta

if TYPE_CHECKING:
    from prompt_toolkit.document import Document


COMMANDS: dict[str, tuple[str, str]] = {
    "/retry": ("", "answer the last question again"),
    "/reset": ("", "forget the conversation"),
    "/system": ("TEXT", "set the instructions, and forget the conversation; without TEXT: remove them"),
    "/temperature": ("X", "divide the logits by X; 0 takes the most likely token"),
    "/top-k": ("N", "sample among the N most likely tokens; 0: all"),
    "/top-p": ("X", "sample among the most likely tokens that together have the probability X"),
    "/seed": ("N", "from now on the same question gets the same answer; without N: another each time"),
    "/save": ("FILE", "write the conversation as a line of training data, which danalab sft and /load read"),
    "/load": ("FILE", "go on with a conversation; of several lines the last"),
    "/help": ("", "these lines"),
    "/exit": ("", "end (also: exit, Ctrl-D)"),
}
KEYS = "Ctrl-C stops an answer; Alt-Enter starts a line; a paste of several lines stays one question"
REFRESH = 0.08  # between two drawings of an answer that is being written [s]


class Terminal:
    """A conversation at a terminal or pipe; `read` gives the next line (EOFError: the end), by default with editing."""

    def __init__(self, session: ChatSession, read: Callable[[], str] | None = None):
        self.session = session
        self._read = read
        self._files: set[Path] = set()  # files of this conversation, which may be written again

    def run(self) -> None:
        """Answer lines until the end of the input, or /exit."""
        read = self._read or line_reader()
        while True:
            try:
                line = read().strip()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                continue
            try:
                if line in ("/exit", "/quit", "exit", "quit"):
                    return
                if line.startswith("/"):
                    self.command(line)
                elif line:
                    self.answer(self.session.ask(line))
            except UserError as error:
                print(printable(str(error)), file=sys.stderr)

    def answer(self, pieces: Generator[Delta, None, None]) -> None:
        """Show an answer as it is written; Ctrl-C ends it."""
        show = _show_markdown if sys.stdout.isatty() else _show_plain
        try:
            show(map(_text, pieces))
        except KeyboardInterrupt:
            pieces.close()
            print()

    def command(self, line: str) -> None:
        """Carry out a line that begins with a slash; UserError: an unknown command, or a value that it cannot take."""
        name, _, value = line.partition(" ")
        value, session = value.strip(), self.session
        match name:
            case "/retry":
                self.answer(session.retry())
            case "/reset":
                session.reset()
                self._files.clear()
            case "/system":
                session.system = value
                session.reset()
            case "/seed":
                self._set(name, seed=_number(name, value, int) if value else None)
            case "/temperature" | "/top-p" | "/top-k" if not value:
                print(getattr(session.sampling, name[1:].replace("-", "_")))
            case "/temperature" | "/top-p" | "/top-k":
                number = _number(name, value, int if name == "/top-k" else float)
                self._set(name, **{name[1:].replace("-", "_"): number})
            case "/save":
                self._save(_path(name, value))
            case "/load":
                self._load(_path(name, value))
            case "/help":
                lines = [f"{f'{each} {given}':18} {text}" for each, (given, text) in COMMANDS.items()]
                print(*lines, KEYS, sep="\n")
            case _:
                raise UserError(f"no command {name}; /help lists them")

    def _set(self, name: str, **value: Any) -> None:
        try:
            self.session.sampling = replace(self.session.sampling, **value)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None

    def _save(self, path: Path) -> None:
        if path.exists() and path.resolve() not in self._files:
            raise UserError(f"{path}: exists; choose another name")
        conversation = self.session.conversation
        try:
            write_atomically(path, conversation.as_json_line())
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None
        self._files.add(path.resolve())
        print(f"{len(conversation.messages)} messages saved")

    def _load(self, path: Path) -> None:
        left_out = self.session.load(read_conversations(path)[-1])
        self._files = {path.resolve()}
        rest = "; its last question has no answer and is left out" if left_out else ""
        print(f"{len(self.session.turns)} messages loaded{rest}")


def _path(name: str, value: str) -> Path:
    if not value:
        raise UserError(f"{name}: a file is missing")
    return Path(expand_home(value))


def _number(name: str, text: str, kind: type[int] | type[float]) -> Any:
    try:
        return kind(text) if text.isascii() else kind("x")
    except ValueError:  # also of more than 4,300 digits
        expected = "a whole number" if kind is int else "a number"
        raise UserError(f"{name} is {text:.40}; it must be {expected}") from None


# ---- reading ----


def line_reader() -> Callable[[], str]:
    """The reader of lines: with editing, history and completion where there is a terminal and prompt_toolkit."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return lambda: input("> ")
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
        from prompt_toolkit.completion import Completer, Completion
        from prompt_toolkit.key_binding import KeyBindings
    except ImportError:
        print("pip install 'danalab[serve]' adds line editing, history and completion", file=sys.stderr)
        return lambda: input("> ")

    class Commands(Completer):
        def get_completions(self, document: "Document", complete_event: Any) -> Iterable[Completion]:
            written = document.text
            for name, (given, text) in COMMANDS.items():
                if written.startswith("/") and name.startswith(written):
                    yield Completion(name, -len(written), display=f"{name} {given}", display_meta=text)

    keys = KeyBindings()
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    prompts = PromptSession(
        history=_history(), completer=Commands(), complete_while_typing=True, auto_suggest=AutoSuggestFromHistory(),
        key_bindings=keys, prompt_continuation="  ", enable_open_in_editor=True,
    )  # fmt: skip
    return lambda: prompts.prompt("> ")


def _history() -> Any:
    """Questions of earlier conversations, in a file that only its owner can read; in memory where it cannot be."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        folder = (environment_path("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "danalab"
        file = folder / "chat_history"
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except (OSError, RuntimeError):  # the latter: the user has no home
        return InMemoryHistory()
    return FileHistory(file)


# ---- writing ----


def _text(delta: Delta) -> str:
    """What a piece of an answer adds, without anything that controls a terminal."""
    done = delta.calculation
    return printable(delta.text if done is None else f"[{done.expression} = {done.result}] ")


def _show_plain(texts: Iterable[str]) -> None:
    for text in texts:
        print(text, end="", flush=True)
    print()


def _show_markdown(texts: Iterable[str]) -> None:
    """Blocks that are complete stay; only the last one is drawn anew as it grows."""
    from rich.console import Console
    from rich.live import Live
    from rich.markdown import Markdown

    console, open_text, drawn = Console(highlight=False), "", 0.0
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="ellipsis") as live:
        try:
            for text in texts:
                complete, open_text = split_blocks(open_text + text)
                if complete:
                    live.update("")
                    console.print(Markdown(complete, hyperlinks=False), "")
                if complete or time.monotonic() - drawn > REFRESH:
                    live.update(Markdown(open_text, hyperlinks=False), refresh=True)
                    drawn = time.monotonic()
        finally:
            live.update("", refresh=True)
            console.print(Markdown(open_text, hyperlinks=False))


def split_blocks(text: str) -> tuple[str, str]:
    """(blocks of Markdown that nothing can be added to, the rest): up to the last empty line outside of code."""
    end = position = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if fence:
            fence = "" if bare == fence else fence
        elif bare.startswith(("```", "~~~")):
            fence = bare[:3]
        elif not bare and line.endswith("\n") and position:
            end = position + len(line)
        position += len(line)
    return text[:end].strip("\n"), text[end:]
