"""Text from a run or a model in Hugging Face format: model, tokenizer, and bytes turned into text as they come."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError
from danalab.inference.generation import generate
from danalab.train.run.open import open_run

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.models.decoder import Decoder

DEFAULT_TOKENS = 128
"""Tokens that are added where no number is asked for and the model's context has the room."""


@dataclass(frozen=True)
class Sample:
    """One continuation."""

    text: str
    """What the model added to the prompt."""
    tokens: int
    """How many tokens that is."""
    tokens_per_second: float

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Sampler:
    """A model that continues text."""

    model: Decoder
    tokenizer: Tokenizer
    step: int | None
    """The checkpoint's step; None of a model that does not come from a run."""

    @classmethod
    def open(cls, folder: str | Path, step: int | None = None, tokenizer: str | None = None) -> Sampler:
        """The model of a run folder at `step`, or at its newest checkpoint that verifies.

        Args: tokenizer: name or path of the one that made the run's data; default what the run kept.
        Raises:
            UserError: no run there, no such checkpoint, or no tokenizer.
        """
        from danalab.data.tokenizers import load_tokenizer

        run = open_run(folder)
        chosen = run.tokenizer if tokenizer is None else load_tokenizer(tokenizer)
        loaded = run.load_model(step)
        return cls(loaded.model.eval(), chosen, loaded.step)

    @classmethod
    def open_huggingface(cls, folder: str | Path, tokenizer: str | None = None) -> Sampler:
        """The model of a folder in Hugging Face format, read where it is: what `danalab export` wrote, or another
        that `danalab import` takes.

        Args: tokenizer: name or path of the model's; default the folder's.
        Raises:
            UserError: no such folder, a model that we do not have, damaged files, or no tokenizer.
        """
        from danalab.data.tokenizers import load_tokenizer
        from danalab.train.run.exchange import read_model

        model = read_model(folder)
        try:
            chosen = load_tokenizer(folder if tokenizer is None else tokenizer)
        except UserError as error:
            if tokenizer is not None:
                raise
            raise UserError(f"{error}; --tokenizer names the one that the model was trained with") from None
        return cls(model.eval(), chosen, None)

    def stream(self, prompt: str, max_tokens: int | None = None, *, seed: int, **settings: Any) -> Iterator[str]:
        """Pieces of the continuation as they are sampled; stops at the end of the document.

        `settings` are those of `danalab.inference.generate`; `max_tokens` None means `DEFAULT_TOKENS`, or what
        the model's context leaves room for. A character whose bytes are spread over several
        tokens comes when it is complete.
        """
        # The tokens of a multi-byte character arrive one by one; the decoder holds them until they make sense.
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in self._tokens(prompt, max_tokens, seed=seed, **settings):
            yield decoder.decode(self.tokenizer.decode_bytes([token]))
        yield decoder.decode(b"", final=True)

    def sample(self, prompt: str, max_tokens: int | None = None, *, seed: int, **settings: Any) -> Sample:
        """The whole continuation at once."""
        start = time.perf_counter()
        tokens = list(self._tokens(prompt, max_tokens, seed=seed, **settings))
        seconds = time.perf_counter() - start
        text = self.tokenizer.decode_bytes(tokens).decode("utf-8", errors="replace")
        return Sample(text, len(tokens), len(tokens) / seconds if tokens else 0.0)

    def _tokens(self, prompt: str, max_tokens: int | None, **settings: Any) -> Iterator[int]:
        # A new document begins after the token that ends one.
        ids = self.tokenizer.encode(prompt) or [self.tokenizer.eos_id]
        if max_tokens is None:
            max_tokens = max(1, min(DEFAULT_TOKENS, self.model.config.seq_len - len(ids)))
        return generate(
            self.model,
            ids,
            max_tokens=max_tokens,
            stop_ids=(self.tokenizer.eos_id,),
            n_valid=min(self.tokenizer.n_tokens, self.model.config.vocab_size),
            **settings,
        )
