"""Talk to a model in the terminal."""

import sys
from dataclasses import dataclass

from danalab.cli._shared.model_flags import BASE_MODEL, ModelFlags
from danalab.train.config.flags import Count, setting


@dataclass(frozen=True, kw_only=True)
class Flags(ModelFlags):
    prompt: str | None = setting(None, "Ask this one question, print the answer, and end.")
    system: str = setting("", "Instructions before the first question.")
    max_tokens: Count | None = setting(
        None, "Tokens of an answer at most; default: as many as fit in the context."
    )
    temperature: float = setting(0.8, "Divides the logits; 0 takes the most likely token.")
    top_k: int = setting(0, "Sample among the k most likely tokens; 0: all.")
    top_p: float = setting(1.0, "Sample among the most likely tokens that together have this probability.")
    seed: int | None = setting(None, "Same seed, same answers; default: a random one.")


def run(flags: Flags) -> None:
    """Talk to a model in the terminal; /help lists commands."""
    from danalab.chat.terminal import ChatSession, answer, talk
    from danalab.serve.requests import ChatRequest, read_request

    names = ("max_tokens", "temperature", "top_k", "top_p", "seed")
    asked, _ = read_request(ChatRequest, {name: getattr(flags, name) for name in names})
    model = flags.open()
    session = ChatSession(model, asked, flags.system)
    if not model.is_chat:
        print(BASE_MODEL, file=sys.stderr)
    if flags.prompt is not None:
        answer(session, flags.prompt)
        return
    print(f"{model.name}, context {model.context} tokens; /help lists commands", file=sys.stderr)
    talk(session)


VERBS = {"chat": (Flags, run)}
