"""The engine: continuous batching of requests on one model.

    engine = Engine(model, tokenizer=tokenizer)
    number = engine.submit(Request(prompt, SamplingParameters(max_tokens=32)))
    while engine.busy:
        for event in engine.step(): ...

Requests join and leave between steps. A step computes one token of every running request and a piece of the prompts of
new ones, then draws the next tokens. The text of a request with a seed does not depend on the others, except for
rounding in the eager back end. The engine is not thread-safe: one thread drives it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from danalab.errors import UserError, nearest
from danalab.inference.eager import EagerBackend
from danalab.inference.request import (
    FAILED,
    Completion,
    FinishReason,
    Request,
    RequestState,
    SamplingParameters,
    TextStream,
    TokenEvent,
)
from danalab.inference.sampling import draw
from danalab.inference.scheduler import BlockPool, Scheduler
from danalab.models.decoder import Decoder

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.inference.native_decoding import NativeBackend

log = logging.getLogger(__name__)

BLOCK = 16
"""Positions of a block of the cache [tokens]."""
STEP_TOKENS = 256
"""Tokens of a step, at most: the pieces of prompts and one token of each running request."""
CACHE_BYTES = 4 << 30
"""Limit on the default size of the cache; memory is used when it is written to."""


class Engine:
    """Continuous batching of requests on one model.

    Args:
        model: in evaluation mode; its weights are copied where the back end lays them out anew: see `reload`.
        tokenizer: for stop strings; its end-of-text token ends texts, its padding ids are never drawn.
        max_batch_size: requests that are computed at the same time.
        cache_tokens: positions of all requests for which there is cache; None: enough for `max_batch_size` whole
            contexts, up to 4 GiB.
        weight_dtype: "float32", "bfloat16" or "int8" (a scale for each output feature): how the native back end stores
            matrices; None: as the model.
        prefix_reuse: keep the keys and values of prompts for later requests with the same beginning.
        end_tokens: ids that end a text; None: the tokenizer's end-of-text token, or none.
        backend: "native", where the tokens and log-probabilities of a request are bitwise the same alone or in any
            batch; "eager"; or "auto": native where it can compute the model.
    Raises:
        UserError: a setting out of range, or one that the back end does not support.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer | None = None,
        *,
        max_batch_size: int = 32,
        cache_tokens: int | None = None,
        weight_dtype: str | None = None,
        prefix_reuse: bool = True,
        end_tokens: Collection[int] | None = None,
        backend: str = "auto",
    ):
        config = model.config
        if max_batch_size < 1:
            raise UserError(f"max_batch_size is {max_batch_size}; it must be at least 1")
        if model.document_token is not None:
            raise UserError("decoding needs one document per row: set document_token to None before")
        self._n_valid = config.vocab_size if tokenizer is None else min(tokenizer.n_tokens, config.vocab_size)
        if end_tokens is None:
            end_tokens = () if tokenizer is None else (tokenizer.eos_id,)
        self.model, self.tokenizer, self._ends = model, tokenizer, frozenset(end_tokens)
        pool, step_tokens = _pool(model, max_batch_size, cache_tokens), STEP_TOKENS + max_batch_size
        self._backend = _backend(backend, model, pool, max_batch_size, step_tokens, weight_dtype)
        self.scheduler = Scheduler(
            pool,
            max_batch_size=max_batch_size,
            step_tokens=step_tokens,
            prefix_reuse=prefix_reuse and self._backend.reuses,
        )
        self._sequences: dict[int, RequestState] = {}
        self._next, self._empty = 0, list[TokenEvent]()

    # ---- requests ----

    def submit(self, request: Request) -> int:
        """Queue a request; returns its number.

        UserError: an empty prompt, an id outside the vocabulary, a prompt and `max_tokens` that exceed context or cache
        together, or stop strings without a tokenizer.
        """
        config, parameters = self.model.config, request.parameters
        if not len(request.prompt):
            raise UserError("the prompt is empty: generation needs at least one token to continue")
        low, high = min(request.prompt), max(request.prompt)
        if low < 0 or high >= config.vocab_size:
            bad = low if low < 0 else high
            raise UserError(f"prompt token id {bad} is outside the model's vocabulary of {config.vocab_size}")
        for token in parameters.logit_bias:
            if not 0 <= token < self._n_valid:
                raise UserError(f"logit_bias: token id {token} is outside the vocabulary of {self._n_valid}")
        limit = parameters.token_limit(len(request.prompt), config.seq_len)
        pool, longest = self.scheduler.pool, len(request.prompt) + limit
        if pool is not None and pool.blocks_for(longest) > pool.n_blocks:
            raise UserError(
                f"the request may need {longest} tokens of cache, and there are {pool.n_blocks * pool.block_size}; "
                "shorten it or give more cache_tokens"
            )
        sequence = RequestState(self._next, request, limit, self.end_tokens(parameters))
        if parameters.stop:
            sequence.stream = self.text_stream(parameters)
        self._next += 1
        self._sequences[sequence.id] = sequence
        if limit:
            self.scheduler.add(sequence)
        else:
            self._empty.append(TokenEvent(sequence.id, -1, math.nan, (), "length"))
        return sequence.id

    def cancel(self, number: int) -> bool:
        """End a request now and free its cache; False: it is not known, or has ended. No event follows."""
        sequence = self._sequences.get(number)
        if sequence is None:
            return False
        self._empty = [event for event in self._empty if event.request_id != number]
        self._end(sequence)
        return True

    def force(self, number: int, tokens: Sequence[int]) -> bool:
        """Append tokens to the text of a request that runs; False: the context has no space for them.

        They do not count as drawn; the next token is drawn after them.
        """
        text = self._sequences[number].tokens
        has_space = len(text) + len(tokens) < self.model.config.seq_len
        if has_space:
            text.extend(tokens)
        return has_space

    def end_tokens(self, parameters: SamplingParameters) -> frozenset[int]:
        """Ids that end a text with these parameters."""
        return self._ends.union(parameters.stop_tokens)

    def text_stream(self, parameters: SamplingParameters) -> TextStream:
        """The text of the tokens of a request with these parameters, up to its end; needs a tokenizer."""
        if self.tokenizer is None:
            raise UserError("a text or stop string needs an engine with a tokenizer")
        return TextStream(self.tokenizer, parameters.stop, self.end_tokens(parameters))

    @property
    def busy(self) -> bool:
        """Whether requests are running or waiting."""
        return bool(self._sequences)

    # ---- steps ----

    def step(self) -> list[TokenEvent]:
        """Compute one step; returns the tokens that were drawn, in no particular order."""
        events, self._empty = self._empty, []
        for event in events:
            self._end(self._sequences[event.request_id])
        chunks = self.scheduler.plan()
        if not chunks:
            return events
        logits, sequences = self._backend.run(chunks)
        for chunk in chunks:
            self.scheduler.advance(chunk)
        if sequences:
            drawn = draw(logits[:, : self._n_valid], sequences, self._backend.sampler)
            for sequence, token, logprob, top in zip(sequences, *drawn, strict=True):
                reason = self._accept(sequence, token)
                if reason is not None:
                    self._end(sequence)
                events.append(TokenEvent(sequence.id, token, logprob, top, reason))
        return events

    def generate(
        self,
        requests: Iterable[Request],
        on_event: Callable[[int, TokenEvent], None] = lambda index, event: None,
    ) -> list[Completion]:
        """Complete all requests, in their order; the engine must be idle.

        Args: on_event: called with the index of the request and each event.
        Raises:
            UserError: a bad request; or the model's logits are not finite.
        """
        if self.busy:
            raise UserError("generate needs an idle engine: other requests are running")
        index_of: dict[int, int] = {}
        try:
            for index, request in enumerate(requests):
                index_of[self.submit(request)] = index
            completions = [Completion() for _ in index_of]
            while self.busy:
                for event in self.step():
                    completion = completions[index_of[event.request_id]]
                    completion.finish_reason = event.finish_reason
                    if event.token >= 0:
                        completion.tokens.append(event.token)
                        completion.logprobs.append(event.logprob)
                        completion.top_logprobs.append(event.top_logprobs)
                    elif event.finish_reason == "error":
                        raise UserError(FAILED)
                    on_event(index_of[event.request_id], event)
        finally:
            for number in index_of:
                self.cancel(number)
        return completions

    def reload(self) -> None:
        """Use the model's present weights; cached prefixes are forgotten. UserError: requests are running."""
        if self.busy:
            raise UserError("reload needs an idle engine: requests are running")
        self._backend.reload()
        if self.scheduler.pool is not None:
            self.scheduler.pool.forget()

    # ---- one token ----

    def _accept(self, sequence: RequestState, token: int) -> FinishReason | None:
        """Add a drawn token to its sequence; returns the reason if the sequence ends."""
        if token < 0:
            return "error"
        sequence.drawn += 1
        if sequence.counts is not None and sequence.seen is not None:
            sequence.counts[token] += 1
            sequence.seen.add(token)
        if sequence.request.constraint is not None:
            sequence.request.constraint.advance(token)
        if token in sequence.ends:
            return "stop"
        if sequence.stream is not None:
            sequence.stream.feed(token)
            if sequence.stream.stopped:
                return "stop"
        if sequence.drawn >= sequence.limit:
            return "length"
        if len(sequence.tokens) >= self.model.config.seq_len:
            return "length"  # forced tokens have taken the space
        sequence.tokens.append(token)
        return None

    def _end(self, sequence: RequestState) -> None:
        del self._sequences[sequence.id]
        if sequence.limit:
            self.scheduler.remove(sequence)


def _pool(model: Decoder, max_batch_size: int, cache_tokens: int | None) -> BlockPool | None:
    """The blocks for keys and values; None where no layer has attention."""
    config = model.config
    layers = config.attention_layers
    if cache_tokens is not None and cache_tokens < 1:
        raise UserError(f"cache_tokens is {cache_tokens}; it must be at least 1")
    if config.architecture.oscillators or not layers:
        return None
    if cache_tokens is None:
        each = 2 * layers * config.kv_heads * config.head_dim * model.head_weight.element_size()
        whole = -(-config.seq_len // BLOCK) * BLOCK
        cache_tokens = max(whole, min(max_batch_size * whole, CACHE_BYTES // each))
    return BlockPool(-(-cache_tokens // BLOCK), BLOCK)


def _backend(
    name: str, model: Decoder, pool: BlockPool | None, slots: int, rows: int, weight_dtype: str | None
) -> EagerBackend | NativeBackend:
    """The back end "native" or "eager"; "auto": the native one where it can. UserError: it cannot do what is asked.

    Its `run` computes chunks of up to `rows` tokens of `slots` sequences; its `sampler` draws tokens of plain sequences
    (None: torch does); `reuses`: whether prefixes can be reused, which recurrent states cannot.
    """
    from danalab.inference.native_decoding import NativeBackend

    if name not in ("auto", "native", "eager"):
        raise UserError(
            f"unknown back end '{name}'{nearest(name, ('native', 'eager'))}; known: native, eager"
        )
    if name == "eager" and weight_dtype is not None:
        raise UserError(
            f"weight_dtype {weight_dtype}: the eager back end computes with the model's own weights"
        )
    if name != "eager":
        try:
            return NativeBackend(model, pool, slots, rows, weight_dtype)
        except UserError as error:
            if name == "native" or weight_dtype is not None:
                raise
            log.info("decoding by the model's own layers, which is slower: %s", error)
    return EagerBackend(model, pool)
