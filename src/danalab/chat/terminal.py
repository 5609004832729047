"""Talking to a model in a terminal: an answer is written as it comes, with its calculations.

In a pipe lines are read without a prompt, and answers written without calculations. What a model writes cannot control
the terminal: escapes become U+FFFD.
"""

import sys
from collections.abc import Generator

from danalab.chat.messages import CALCULATION, MAX_MESSAGES
from danalab.errors import UserError, printable
from danalab.serve.answers import Delta
from danalab.serve.chat_model import ChatModel
from danalab.serve.requests import ChatRequest, plan_chat

COMMANDS = """\
/retry   answer the last question again
/reset   forget the conversation
/help    these lines
/exit    end (also: Ctrl-D)
Ctrl-C stops an answer."""


class ChatSession:
    """The turns of one conversation, the oldest left out when the context is full; `asked`: settings of the answers."""

    def __init__(self, chat_model: ChatModel, asked: ChatRequest, system: str = ""):
        self.chat_model, self.asked, self.turns = chat_model, asked, list[dict[str, str]]()
        self._system = {"role": "system", "content": system}
        self._engine = chat_model.engine(max_batch_size=1)

    def ask(self, question: str) -> Generator[Delta, None, None]:
        """The answer, in pieces; if closed early, it is remembered. UserError: the question is too long."""
        asked = {"role": "user", "content": question}
        messages = [self._system, *self.turns[2 - MAX_MESSAGES :], asked]
        body = self.asked.model_copy(update={"messages": messages, "truncation": "auto"})
        [(request, reader)], _ = plan_chat(body, self.chat_model, 1, "")
        answer, number = Delta(), self._engine.submit(request)
        try:
            while answer.finish_reason is None:
                for event in self._engine.step():
                    delta = reader.read(event, self._engine)
                    answer += delta
                    yield delta
        finally:
            self._engine.cancel(number)
            if answer.text.strip():
                self.turns += [asked, {"role": "assistant", "content": answer.text}]


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
            question = session.turns[-2]["content"]
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
