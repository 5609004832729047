"""Decoding of one sequence, token by token, with a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from danalab.errors import UserError
from danalab.inference.parameters import SamplingParameters
from danalab.inference.sampling import sample
from danalab.models.decoder import Decoder


def generate(
    model: Decoder,
    prompt_ids: Sequence[int],
    parameters: SamplingParameters | None = None,
    *,
    n_valid: int | None = None,
    **settings: Any,
) -> Iterator[int]:
    """Yield the token ids that continue `prompt_ids`.

    Args:
        parameters: sampling parameters; or give their fields as `settings`.
        n_valid: ids from this one on (padding of the vocabulary) are never chosen; default: all ids are valid.
    Raises:
        UserError: at the call, not at the first token: an empty prompt, an id outside the vocabulary, a prompt and
            `max_tokens` that exceed the model's context together, or a setting out of range.
    """
    parameters = SamplingParameters(**settings) if parameters is None else parameters
    vocab_size, seq_len = model.config.vocab_size, model.config.seq_len
    n_valid = vocab_size if n_valid is None else n_valid
    if not len(prompt_ids):
        raise UserError("the prompt is empty: generation needs at least one token to continue")
    for token in prompt_ids:
        if not 0 <= token < vocab_size:
            raise UserError(f"prompt token id {token} is outside the model's vocabulary of {vocab_size}")
    if not 1 <= n_valid <= vocab_size:
        raise UserError(f"generation needs 1 <= n_valid <= vocab_size {vocab_size}: got {n_valid}")
    max_tokens = parameters.token_limit(len(prompt_ids), seq_len)
    generator = torch.Generator()
    if parameters.seed is None:
        generator.seed()
    else:
        generator.manual_seed(parameters.seed)
    return _generate(model, list(prompt_ids), parameters, max_tokens, n_valid, generator)


def _generate(
    model: Decoder,
    text: list[int],
    parameters: SamplingParameters,
    max_tokens: int,
    n_valid: int,
    generator: torch.Generator,
) -> Iterator[int]:
    seq_len, device = model.config.seq_len, model.head_weight.device
    capacity = min(len(text) + max_tokens, seq_len)
    cache, tokens = model.new_cache(1, capacity), text[-seq_len:]
    for _ in range(max_tokens):
        with torch.no_grad():  # not around the yield: it would affect the caller's code
            if cache.length + len(tokens) > seq_len:  # only with a sliding window
                cache, tokens = model.new_cache(1, capacity), text[-max(1, seq_len // 2) :]
            hidden = model.hidden(torch.tensor([tokens], device=device), cache=cache)
            logits = F.linear(hidden[0, -1], model.head_weight)[:n_valid]
            token = sample(
                logits, generator, temperature=parameters.temperature, top_k=parameters.top_k, top_p=parameters.top_p
            )
        if token in parameters.stop_ids:
            return
        yield token
        text.append(token)
        tokens = [token]
