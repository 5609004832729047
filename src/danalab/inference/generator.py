"""Text in, text out: a model with its tokenizer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError
from danalab.inference.engine import Engine
from danalab.inference.parameters import SamplingParameters
from danalab.inference.request import FAILED, Request
from danalab.inference.text import TextStream

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

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)


class TextGenerator:
    """A model that continues text, one prompt at a time or many; `settings` are fields of `SamplingParameters`."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer, step: int | None = None, **engine: Any):
        """Args:
        step: the checkpoint's step; None: the model does not come from a run.
        engine: settings of `Engine`.
        """
        self.model, self.tokenizer, self.step = model, tokenizer, step
        self._settings = engine
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The engine that decodes; made on first use."""
        if self._engine is None:
            self._engine = Engine(self.model, self.tokenizer, **self._settings)
        return self._engine

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """Pieces of the continuation as they are drawn; ends with the document.

        Raises:
            UserError: at the call, not at the first token: a setting out of range, or a prompt that does not fit.
        """
        parameters = SamplingParameters(**settings)
        number = self.engine.submit(Request(self.encode(prompt), parameters))
        return self._stream(number, self.engine.text_stream(parameters))

    def _stream(self, number: int, text: TextStream) -> Iterator[str]:
        try:
            while True:
                for event in self.engine.step():
                    if event.request_id == number:
                        if event.finish_reason == "error":
                            raise UserError(FAILED)
                        piece = text.feed(event.token) if event.token >= 0 else ""
                        if event.finish_reason is not None:
                            piece += text.finish()
                        if piece:
                            yield piece
                        if event.finish_reason is not None:
                            return
        finally:
            self.engine.cancel(number)

    def complete(self, prompt: str, **settings: Any) -> Continuation:
        """The whole continuation."""
        return self.complete_all([prompt], [SamplingParameters(**settings)])[0]

    def complete_all(self, prompts: Sequence[str], parameters: Sequence[SamplingParameters]) -> list[Continuation]:
        """The continuation of each prompt, decoded together; the speed of each is measured over the time of all."""
        requests = [Request(self.encode(prompt), each) for prompt, each in zip(prompts, parameters, strict=True)]
        start = time.perf_counter()
        completions = self.engine.generate(requests)
        seconds = time.perf_counter() - start
        found = []
        for completion, each in zip(completions, parameters, strict=True):
            stream = self.engine.text_stream(each)
            text = "".join(map(stream.feed, completion.tokens)) + stream.finish()
            count = len(completion.tokens)
            if count and completion.tokens[-1] in self.engine.end_tokens(each):
                count -= 1
            found.append(Continuation(text, count, count / seconds if count else 0.0))
        return found

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt; the end-of-text token, which begins a document, for an empty one."""
        return self.tokenizer.encode(prompt) or [self.tokenizer.eos_id]
