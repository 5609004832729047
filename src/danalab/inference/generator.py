"""Text in, text out: a model with its tokenizer."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError
from danalab.inference.engine import Engine
from danalab.inference.request import FAILED, Request, SamplingParameters

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.models.decoder import Decoder


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

    def complete(self, prompt: str, parameters: Sequence[SamplingParameters]) -> list[tuple[str, int]]:
        """Whole continuations, decoded together: their texts, and how many tokens each has."""
        ids, continued = self.encode(prompt), list[tuple[str, int]]()
        drawn = self.engine.generate([Request(ids, each) for each in parameters])
        for each, own in zip(drawn, parameters, strict=True):
            stream = self.engine.text_stream(own)
            text = "".join(map(stream.feed, each.tokens)) + stream.finish()
            has_end = each.tokens[-1:] and each.tokens[-1] in self.engine.end_tokens(own)
            continued.append((text, len(each.tokens) - bool(has_end)))
        return continued

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt after the tokenizer's own prefix; where both are empty, the end-of-text token."""
        return [*self.tokenizer.prefix, *self.tokenizer.encode(prompt)] or [self.tokenizer.eos_id]
