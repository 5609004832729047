"""Talking to a model in a terminal: an answer is written as it comes, with its calculations.

In a pipe lines are read without a prompt, and answers written without calculations. What a model writes cannot control
the terminal: escapes become U+FFFD.
"""

import sys

from danalab.chat.messages import CALCULATION
from danalab.errors import UserError, printable
from danalab.serve.chat_model import ChatSession

COMMANDS = """\
/retry   answer the last question again
/reset   forget the conversation
/help    these lines
/exit    end (also: Ctrl-D)
Ctrl-C stops an answer."""


def talk(session: ChatSession) -> None:
    """Answer lines until the end of the input, or /exit."""
    prompt = ""
    if sys.stdin.isatty() and sys.stdout.isatty():
        import readline  # noqa: F401  (editing and history of `input`)

        prompt = "> "
    while True:
        try:
            line = input(prompt).strip()
            if line == "/exit":
                return
            if line.startswith("/"):
                command(session, line)
            elif line:
                answer(session, line)
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
        except UserError as error:
            print(printable(str(error)), file=sys.stderr)


def answer(session: ChatSession, question: str) -> None:
    """Show an answer as it is written; Ctrl-C ends it."""
    pieces = session.ask(question)
    texts = (printable(delta.text) for delta in pieces)
    try:
        if sys.stdout.isatty():
            for text in texts:
                print(text, end="", flush=True)
            print()
        else:
            print(CALCULATION.sub("", "".join(texts)), flush=True)
    except KeyboardInterrupt:
        pieces.close()
        print()


def command(session: ChatSession, line: str) -> None:
    """Carry out a line that begins with a slash; UserError: an unknown command, or no question to answer again."""
    match line:
        case "/retry" if len(session.turns) >= 2:
            question = session.turns[-2].text
            session.turns = session.turns[:-2]
            answer(session, question)
        case "/retry":
            raise UserError("there is no question to answer again")
        case "/reset":
            session.turns = []
        case "/help":
            print(COMMANDS)
        case _:
            raise UserError(f"no command {line:.40}; /help lists them")
