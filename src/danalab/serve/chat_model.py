"""Opening a model to talk to. Its folder is read at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from danalab.chat.formats import PlainFormat, TemplateFormat, format_of
from danalab.chat.marks import ChatFormat
from danalab.inference.engine import Engine
from danalab.models.decoder import Decoder
from danalab.train.run.exchange import open_text_generator

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer

SMALL = 20_000_000
"""Parameters of a model that one thread serves: beside other work one thread answers 2.2 times the requests of two."""


class ChatModel:
    """A model that is ready to answer.

    Attributes:
        step: the checkpoint's; None for a folder in Hugging Face format.
        created: time of loading [s since 1970].
        context: tokens of a prompt and its continuation together, at most.
        n_ids: token ids are below this.
        longest: bytes of the longest token.
        is_chat: whether the model has learned a format of conversations.
    """

    def __init__(
        self,
        name: str,
        model: Decoder,
        tokenizer: Tokenizer,
        format: ChatFormat | TemplateFormat | PlainFormat,
        step: int | None = None,
    ):
        self.name, self.model, self.tokenizer, self.format, self.step = name, model, tokenizer, format, step
        self.created, self.context = int(time.time()), model.config.seq_len
        self.n_ids = min(tokenizer.n_tokens, model.config.vocab_size)
        self.longest = max(1, int(tokenizer.token_bytes().max()))
        self.is_chat = not isinstance(format, PlainFormat)

    def engine(self, **settings: Any) -> Engine:
        """An engine for the model, on one thread where it is small."""
        if sum(parameter.numel() for parameter in self.model.parameters()) < SMALL:
            torch.set_num_threads(1)
        return Engine(self.model, self.tokenizer, **settings)


def open_chat_model(
    run: Path | None = None,
    huggingface: Path | None = None,
    *,
    step: int | None = None,
    tokenizer: str | None = None,
    name: str | None = None,
) -> ChatModel:
    """The model of one run folder, or of one folder in Hugging Face format; UserError: not one, or unreadable."""
    generator = open_text_generator(run, huggingface, step, tokenizer)
    folder = run or huggingface
    assert folder is not None
    chosen = format_of(folder, generator.tokenizer)
    return ChatModel(
        name or folder.resolve().name, generator.model, generator.tokenizer, chosen, generator.step
    )
