"""Talk to a model in the terminal."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from danalab.cli._shared.model_flags import BASE_MODEL, ModelFlags
from danalab.errors import UserError, printable
from danalab.train.config.fields import Count

if TYPE_CHECKING:
    from danalab.serve import ChatSession

HELP = """\
/reset          forget the conversation
/system TEXT    set the instructions, and forget the conversation; without TEXT: remove them
/seed N         from now on the same question gets the same answer; without N: another each time
/help           these lines
/exit           end (also: Ctrl-D)
Ctrl-C          stops an answer"""


@dataclass(frozen=True, kw_only=True)
class Flags(ModelFlags):
    prompt: str | None = None
    """Ask this one question, print the answer, and end."""
    system: str = ""
    """Instructions before the first question."""
    max_tokens: Count | None = None
    """Tokens of an answer at most; default: as many as fit in the context."""
    temperature: float = 0.8
    """Divides the logits; 0 takes the most likely token."""
    top_k: int = 0
    """Sample among the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Sample among the most likely tokens that together have this probability."""
    seed: int | None = None
    """Same seed, same answers; default: a random one."""


def run(flags: Flags) -> None:
    """Talk to a model in the terminal; /help lists commands."""
    from danalab.inference import SamplingParameters

    names = ("max_tokens", "temperature", "top_k", "top_p", "seed")
    sampling = SamplingParameters(**{name: getattr(flags, name) for name in names})
    model = flags.open()
    from danalab.inference import Engine
    from danalab.serve import ChatSession

    session = ChatSession(model, Engine(model.model, model.tokenizer, max_batch_size=1), sampling, flags.system)
    if not model.is_chat:
        print(BASE_MODEL, file=sys.stderr)
    if flags.prompt is not None:
        _answer(session, flags.prompt)
        return
    print(f"{model.name}, context {model.context} tokens; /help lists commands", file=sys.stderr)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        try:
            if line == "/exit":
                return
            if line.startswith("/"):
                _command(session, line)
            elif line:
                _answer(session, line)
        except UserError as error:
            print(printable(str(error)), file=sys.stderr)


def _answer(session: "ChatSession", question: str) -> None:
    """Print an answer as it is written; Ctrl-C ends it."""
    pieces = session.ask(question)
    try:
        for delta in pieces:
            if delta.calculation is not None:
                print(printable(f"[{delta.calculation.expression} = {delta.calculation.result}]"), end="")
            print(printable(delta.text), end="", flush=True)  # a model must not move the cursor
    except KeyboardInterrupt:
        pieces.close()
    print()


def _command(session: "ChatSession", line: str) -> None:
    from dataclasses import replace

    name, _, value = line.partition(" ")
    match name:
        case "/reset":
            session.reset()
        case "/system":
            session.system = value.strip()
            session.reset()
        case "/seed":
            session.sampling = replace(session.sampling, seed=_whole_number(name, value) if value else None)
        case "/help":
            print(HELP)
        case _:
            raise UserError(f"no command {name}; /help lists them")


def _whole_number(name: str, text: str) -> int:
    try:
        return int(text) if text.isascii() else int("x")
    except ValueError:  # also of more than 4,300 digits
        raise UserError(f"{name} {text:.40}: must be a whole number") from None
