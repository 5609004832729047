"""A model to talk to: weights and tokenizer in memory, and the format of its conversations.

Everything is read at once: later changes of the folder, or its removal, do not matter.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.chat.conversations import ChatFormat
from danalab.chat.formats import PlainFormat, TemplateFormat, format_of
from danalab.errors import UserError
from danalab.serve.fields import RequestError

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.inference import TextGenerator
    from danalab.models.decoder import Decoder


@dataclass(frozen=True)
class ChatModel:
    """A model that is ready to answer."""

    name: str
    model: "Decoder"
    tokenizer: "Tokenizer"
    format: ChatFormat | TemplateFormat | PlainFormat
    step: int | None = None
    """The checkpoint's step; None for a folder in Hugging Face format."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Time of loading [s since 1970]."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """What the page shows of the run: see `run_card`."""

    @property
    def context(self) -> int:
        """Tokens of a prompt and its continuation together, at most."""
        return self.model.config.seq_len

    @property
    def n_ids(self) -> int:
        """Token ids are below this."""
        return min(self.tokenizer.n_tokens, self.model.config.vocab_size)

    def ids(self, prompt: str | Sequence[int], field: str) -> list[int]:
        """Ids of a text (never specials), or the given ids; a RequestError names a `field` with unknown ones."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        for position, token in enumerate(prompt):
            if not 0 <= token < self.n_ids:
                where = f"{field}.{position}"
                reason = f"'{where}': {token!s:.40} is not one of the tokenizer's {self.n_ids} ids"
                raise RequestError(400, reason, param=where)
        return list(prompt)

    @property
    def is_chat(self) -> bool:
        """Whether the model has learned a format of conversations."""
        return not isinstance(self.format, PlainFormat)

    @property
    def calls_tools(self) -> bool:
        """Whether the model has learned calculations and calls of functions."""
        return isinstance(self.format, ChatFormat)

    @property
    def stop_texts(self) -> Sequence[str]:
        """Texts that end an answer in a conversation."""
        return self.format.stop_texts if isinstance(self.format, PlainFormat) else ()


def open_chat_model(
    run: Path | None = None,
    huggingface: Path | None = None,
    *,
    step: int | None = None,
    tokenizer: str | None = None,
    name: str | None = None,
) -> ChatModel:
    """The model of one run folder, or of one folder in Hugging Face format; UserError: not one, or unreadable."""
    from danalab.serve.run_card import run_card

    generator = open_text_generator(run, huggingface, step, tokenizer)
    folder = run or huggingface
    assert folder is not None
    chosen = format_of(folder, generator.tokenizer)
    name = name or folder.resolve().name
    card = run_card(folder, generator.model, generator.step)
    return ChatModel(name, generator.model, generator.tokenizer, chosen, generator.step, card=card)


def open_text_generator(
    run: Path | None,
    huggingface: Path | None,
    step: int | None = None,
    tokenizer: str | None = None,
    device: str = "cpu",
    **engine: Any,
) -> "TextGenerator":
    """The same for plain text. `engine`: settings of `danalab.inference.Engine`."""
    from danalab.train.run.exchange import open_generator, open_huggingface_generator

    if (run is None) == (huggingface is None):
        raise UserError("give either --run (a run folder) or --from (a folder in Hugging Face format)")
    if run is not None:
        return open_generator(run, step, tokenizer, device, **engine)
    assert huggingface is not None
    if step is not None:
        raise UserError(f"--step {step}: --from has one model and no checkpoints; leave it out")
    return open_huggingface_generator(huggingface, tokenizer, device, **engine)
