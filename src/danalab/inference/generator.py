"""Text in, text out: a model with its tokenizer."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError
from danalab.inference.engine import Engine
from danalab.inference.request import FAILED, Request, SamplingParameters

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.models.decoder import Decoder


@dataclass(frozen=True)
class Continuation:
    """A continued prompt."""

    text: str
    """The text that the model added."""
    tokens: int
    """Its number of tokens."""
    tokens_per_second: float


class TextGenerator:
    """A model that continues text, one prompt at a time; `settings` are fields of `SamplingParameters`.

    One stream is open at a time.

    Args:
        step: the checkpoint's step; None: the model does not come from a run.
        engine: settings of `Engine`.
    """

    def __init__(self, model: Decoder, tokenizer: Tokenizer, step: int | None = None, **engine: Any):
        self.model, self.tokenizer, self.step, self._settings = model, tokenizer, step, engine

    @cached_property
    def engine(self) -> Engine:
        """The engine that decodes; made on first use."""
        return Engine(self.model, self.tokenizer, **self._settings)

    def stream(self, prompt: str, **settings: Any) -> Generator[str]:
        """Pieces of the continuation as they are drawn; ends with the document.

        Raises:
            UserError: at the first piece: a setting out of range, or a prompt that does not fit.
        """
        request = Request(self.encode(prompt), SamplingParameters(**settings))
        text = self.engine.text_stream(request.parameters)
        number, event = self.engine.submit(request), None
        try:
            while event is None or event.finish_reason is None:
                for event in self.engine.step():
                    piece = text.feed(event.token) if event.token >= 0 else ""
                    if event.finish_reason == "error":
                        raise UserError(FAILED)
                    if event.finish_reason is not None:
                        piece += text.finish()
                    if piece:
                        yield piece
        finally:
            self.engine.cancel(number)

    def complete(self, prompt: str, parameters: Sequence[SamplingParameters]) -> list[Continuation]:
        """Whole continuations, decoded together; the speed of each is measured over the time of all."""
        ids, start = self.encode(prompt), time.perf_counter()
        drawn = [each.tokens for each in self.engine.generate([Request(ids, each) for each in parameters])]
        seconds, continuations = time.perf_counter() - start, []
        for tokens, each in zip(drawn, parameters, strict=True):
            stream = self.engine.text_stream(each)
            text = "".join(map(stream.feed, tokens)) + stream.finish()
            count = len(tokens) - bool(tokens and tokens[-1] in self.engine.end_tokens(each))
            continuations.append(Continuation(text, count, count / seconds if count else 0.0))
        return continuations

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt after the tokenizer's own prefix; where both are empty, the end-of-text token."""
        return [*self.tokenizer.prefix, *self.tokenizer.encode(prompt)] or [self.tokenizer.eos_id]
