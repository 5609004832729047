"""Talking to a model in a terminal: lines with editing and history, answers as Markdown as they are written.

Without a terminal (a pipe, a file) lines are read without a prompt, and answers written as they are, without
calculations. What a model writes cannot control the terminal: escapes become U+FFFD.
"""

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from danalab.chat.dialects import read_conversations
from danalab.chat.messages import CALCULATION, Conversation, Message
from danalab.errors import UserError, printable
from danalab.files import expand_home, write_atomically
from danalab.serve.chat_model import ChatSession

COMMANDS = """\
/retry        answer the last question again
/reset        forget the conversation
/system TEXT  set the instructions, and forget the conversation
/save FILE    write the conversation as a line of training data, which danalab sft and /load read
/load FILE    go on with a conversation; of several lines the last
/help         these lines
/exit         end (also: Ctrl-D)
Ctrl-C stops an answer; Alt-Enter starts a line."""
REFRESH = 0.08  # between two drawings of an answer that is being written [s]


class Terminal:
    """A conversation at a terminal or pipe; `read` gives the next line (EOFError: the end), by default with editing."""

    def __init__(self, session: ChatSession, read: Callable[[], str] | None = None):
        self.session = session
        self._read = read or line_reader()

    def run(self) -> None:
        """Answer lines until the end of the input, or /exit."""
        while True:
            try:
                line = self._read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                print()
                continue
            if line in ("/exit", "/quit"):
                return
            try:
                if line.startswith("/"):
                    self.command(line)
                elif line:
                    self.answer(line)
            except UserError as error:
                print(printable(str(error)), file=sys.stderr)

    def answer(self, question: str) -> None:
        """Show an answer as it is written; Ctrl-C ends it."""
        pieces = self.session.ask(question)
        texts = (printable(delta.text) for delta in pieces)
        try:
            if sys.stdout.isatty():
                _show_markdown(texts)
            else:
                print(CALCULATION.sub("", "".join(texts)), flush=True)
        except KeyboardInterrupt:
            pieces.close()
            print()

    def command(self, line: str) -> None:
        """Carry out a line that begins with a slash; UserError: an unknown command, or a file that it cannot take."""
        name, _, value = line.partition(" ")
        session = self.session
        match name:
            case "/retry" if len(session.turns) >= 2:
                question = session.turns[-2].text
                session.turns = session.turns[:-2]
                self.answer(question)
            case "/retry":
                raise UserError("there is no question to answer again")
            case "/reset":
                session.turns = []
            case "/system":
                session.system, session.turns = value.strip(), []
            case "/save":
                self._save(Path(expand_home(value.strip())))
            case "/load":
                self._load(Path(expand_home(value.strip())))
            case "/help":
                print(COMMANDS)
            case _:
                raise UserError(f"no command {name}; /help lists them")

    def _save(self, path: Path) -> None:
        system = [Message.of("system", self.session.system)] if self.session.system else []
        line = Conversation((*system, *self.session.turns)).as_json_line()
        if path.exists():
            raise UserError(f"{path}: exists; choose another name")
        try:
            write_atomically(path, line)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None
        print(f"{len(self.session.turns)} messages saved")

    def _load(self, path: Path) -> None:
        messages = list(read_conversations(path)[-1].messages)
        self.session.system = messages.pop(0).text if messages[0].role == "system" else ""
        self.session.turns = messages if messages[-1].role == "assistant" else messages[:-1]
        print(f"{len(self.session.turns)} messages loaded")


# ---- reading ----


def line_reader() -> Callable[[], str]:
    """The reader of lines: with editing, history and completion where there is a terminal and prompt_toolkit."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return lambda: input()
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.key_binding import KeyBindings
    except ImportError:
        print("pip install 'danalab[serve]' adds line editing, history and completion", file=sys.stderr)
        return lambda: input("> ")
    keys = KeyBindings()
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    commands = WordCompleter([line.split()[0] for line in COMMANDS.splitlines()[:-1]], sentence=True)
    prompts = PromptSession(completer=commands, key_bindings=keys, prompt_continuation="  ")
    return lambda: prompts.prompt("> ")


# ---- writing ----


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
                    console.print(Markdown(_with_chips(complete), hyperlinks=False), "")
                if complete or time.monotonic() - drawn > REFRESH:
                    live.update(Markdown(_with_chips(open_text), hyperlinks=False), refresh=True)
                    drawn = time.monotonic()
        finally:
            live.update("", refresh=True)
            console.print(Markdown(_with_chips(open_text), hyperlinks=False))


def _with_chips(text: str) -> str:
    """Calculations as code."""
    return CALCULATION.sub(r"`\1 = \2` ", text)


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
