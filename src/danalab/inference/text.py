"""Text in, text out: a model with its tokenizer."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from danalab.inference.generation import generate
from danalab.models.decoder import Decoder

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer


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


@dataclass(frozen=True)
class TextGenerator:
    """A model that continues text; `settings` below are fields of `SamplingParameters`."""

    model: Decoder
    tokenizer: Tokenizer
    step: int | None = None
    """The checkpoint's step; None if the model does not come from a run."""

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """Pieces of the continuation as they are sampled; ends with the document.

        A character whose bytes are spread over several tokens is yielded when it is complete.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in self._tokens(prompt, **settings):
            yield decoder.decode(self.tokenizer.decode_bytes([token]))
        yield decoder.decode(b"", final=True)

    def complete(self, prompt: str, **settings: Any) -> Continuation:
        """The whole continuation."""
        start = time.perf_counter()
        tokens = list(self._tokens(prompt, **settings))
        seconds = time.perf_counter() - start
        text = self.tokenizer.decode_bytes(tokens).decode("utf-8", errors="replace")
        return Continuation(text, len(tokens), len(tokens) / seconds if tokens else 0.0)

    def _tokens(self, prompt: str, **settings: Any) -> Iterator[int]:
        # The end-of-text token starts a new document.
        ids = self.tokenizer.encode(prompt) or [self.tokenizer.eos_id]
        n_valid = min(self.tokenizer.n_tokens, self.model.config.vocab_size)
        return generate(self.model, ids, n_valid=n_valid, stop_ids=(self.tokenizer.eos_id,), **settings)
