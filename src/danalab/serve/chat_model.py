"""Opening a model to talk to, and a conversation with it without a server. Its folder is read at once."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from danalab.chat.formats import PlainFormat, TemplateFormat, format_of
from danalab.chat.marks import ChatFormat
from danalab.chat.messages import Conversation, FieldError, Message
from danalab.errors import UserError
from danalab.inference.engine import Engine
from danalab.inference.request import Request, SamplingParameters
from danalab.models.decoder import Decoder
from danalab.serve.answers import ChatReader, Delta
from danalab.train.run.exchange import open_generator, open_huggingface_generator

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.inference.generator import TextGenerator

SMALL = 20_000_000
"""Parameters of a model that one thread serves: beside other work one thread answers 2.2 times the requests of two."""


@dataclass(frozen=True)
class ChatModel:
    """A model that is ready to answer."""

    name: str
    model: Decoder
    tokenizer: Tokenizer
    format: ChatFormat | TemplateFormat | PlainFormat
    step: int | None = None
    """The checkpoint's step; None for a folder in Hugging Face format."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Time of loading [s since 1970]."""

    @property
    def context(self) -> int:
        """Tokens of a prompt and its continuation together, at most."""
        return self.model.config.seq_len

    @property
    def n_ids(self) -> int:
        """Token ids are below this."""
        return min(self.tokenizer.n_tokens, self.model.config.vocab_size)

    @property
    def is_chat(self) -> bool:
        """Whether the model has learned a format of conversations."""
        return not isinstance(self.format, PlainFormat)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(1, int(self.tokenizer.token_bytes().max()))

    def ids(self, prompt: Any) -> list[int]:
        """Ids of a text after the tokenizer's prefix, or the given ids. FieldError: too long, or unknown ids."""
        if isinstance(prompt, str):
            if len(prompt) > self.context * self.longest:
                raise FieldError(
                    f"the prompt is longer than the model's context of {self.context} tokens",
                    param="prompt",
                    code="context_length_exceeded",
                )
            return [*self.tokenizer.prefix, *self.tokenizer.encode(prompt)]
        if not isinstance(prompt, list):
            raise FieldError(
                "'prompt' must be a text, a list of token ids, or a list of these", param="prompt"
            )
        for position, token in enumerate(prompt[: self.context]):
            if not isinstance(token, int) or not 0 <= token < self.n_ids:
                told = f"'prompt.{position}': {token!s:.40} is not one of the tokenizer's {self.n_ids} ids"
                raise FieldError(told, param="prompt")
        return prompt

    def prompt(self, conversation: Conversation, wanted: int | None, *, drops: bool) -> list[int]:
        """The ids of a conversation. With `drops` the oldest turns are left out until `wanted` tokens fit, too."""
        context, messages = self.context, conversation.messages
        space = context - (wanted if wanted is not None and 0 < wanted < context else 1)
        head = int(messages[0].role == "system")
        places = range(head, len(messages)) if drops else ()
        starts = [0, *(at for at in places if at == head or messages[at].role == "user")]

        def start_after(sizes: list[int], over: int) -> int:
            """The turn before which messages of `over` tokens are left out, or the last one."""
            before = [0, *accumulate(sizes)]
            return next((at for at in starts if before[at] >= over), starts[-1])

        def rendered(start: int) -> list[int]:
            kept = Conversation((*messages[:head], *messages[max(start, head) :]))
            return self.format.render_prompt(kept)

        texts = [each.text for each in messages]
        # A token has at most so many bytes: what cannot fit is left out, or refused, before it is encoded.
        least = [len(text.encode(errors="replace")) // self.longest for text in texts]
        least[:head] = [0] * head  # the system message stays
        start = start_after(least, sum(least) - space)
        if sum(least[start:]) >= context:
            raise too_long(f"at least {sum(least[start:])}", context, "messages")
        prompt = rendered(start)
        if len(prompt) <= space or not drops:
            return prompt
        sizes = [len(ids) + 2 for ids in self.tokenizer.encode_batch(texts[start:])]  # with its marks
        if start < head:
            sizes[0] = 0
        return rendered(start_after([0] * start + sizes, len(prompt) - space))

    def limit(self, prompt: Sequence[int], wanted: int | None, param: str) -> int:
        """Tokens to generate at most: `wanted`, or what the context has space for. FieldError: it has none."""
        space = self.context - len(prompt)
        if space < 1:
            raise too_long(str(len(prompt)), self.context, param)
        return space if wanted is None else min(wanted, space)

    def engine(self, **settings: Any) -> Engine:
        """An engine for the model, on one thread where it is small."""
        if sum(parameter.numel() for parameter in self.model.parameters()) < SMALL:
            torch.set_num_threads(1)
        return Engine(self.model, self.tokenizer, **settings)


def too_long(prompt: str, context: int, param: str) -> FieldError:
    """The refusal of a prompt that the context has no space for."""
    told = f"the prompt has {prompt} tokens: the model's context is {context} tokens"
    return FieldError(told, param=param, code="context_length_exceeded")


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


def open_text_generator(
    run: Path | None,
    huggingface: Path | None,
    step: int | None = None,
    tokenizer: str | None = None,
    device: str = "cpu",
    **engine: Any,
) -> TextGenerator:
    """The same for plain text. `engine`: settings of `danalab.inference.Engine`."""
    if run is not None and huggingface is None:
        return open_generator(run, step, tokenizer, device, **engine)
    if huggingface is None or run is not None:
        raise UserError("give either --run (a run folder) or --from (a folder in Hugging Face format)")
    if step is not None:
        raise UserError(f"--step {step}: --from has one model and no checkpoints; leave it out")
    return open_huggingface_generator(huggingface, tokenizer, device, **engine)


class ChatSession:
    """The turns of one conversation, the oldest left out when the context is full."""

    def __init__(self, chat_model: ChatModel, sampling: SamplingParameters, system: str = ""):
        self.chat_model, self.sampling, self.system = chat_model, sampling, system
        self.turns: list[Message] = []
        self._engine = chat_model.engine(max_batch_size=1)

    def ask(self, question: str) -> Generator[Delta, None, None]:
        """The answer, in pieces; if closed early, it is remembered. UserError: the question is too long."""
        model, asked = self.chat_model, Message.of("user", question)
        system = [Message.of("system", self.system)] if self.system.strip() else []
        conversation = Conversation((*system, *self.turns, asked))
        prompt = model.prompt(conversation, self.sampling.max_tokens, drops=True)
        sampling = replace(
            self.sampling,
            max_tokens=model.limit(prompt, self.sampling.max_tokens, "messages"),
            stop_tokens=tuple(model.format.stop_tokens),
            stop=model.format.stop_texts,
        )
        request = Request(prompt, sampling)
        reader, answer = ChatReader(model.format, request), Delta()
        number = self._engine.submit(request)
        try:
            while answer.finish_reason is None:
                for event in self._engine.step():
                    delta = reader.read(event, self._engine)
                    answer += delta
                    yield delta
        finally:
            self._engine.cancel(number)
            if answer.text.strip():
                self.turns += [asked, Message.of("assistant", answer.text)]
