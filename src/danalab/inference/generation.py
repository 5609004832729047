"""Text from a model, one token at a time, with a cache of keys and values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.errors import UserError
from danalab.models.decoder import Decoder


def generate(
    model: Decoder,
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop_ids: Collection[int] = (),
    n_valid: int | None = None,
) -> Iterator[int]:
    """Yield up to `max_tokens` token ids that continue `prompt_ids`.

    Args:
        temperature: the logits are divided by it; 0 takes the most likely token each time.
        top_k: choose among the k most likely tokens; 0: all.
        top_p: choose among the most likely tokens that together have at least this probability.
        seed: makes the choice repeatable, whatever the device; None: a fresh one.
        stop_ids: ids that end the text; they are not yielded.
        n_valid: ids from here on (padding of the vocabulary) are never chosen; default: all ids are real.
    Raises:
        UserError: at the call, not at the first token: an empty prompt, an id outside the vocabulary, a prompt and
            `max_tokens` that exceed the model's seq_len together, or a setting out of range.
    """
    vocab_size, seq_len = model.config.vocab_size, model.config.seq_len
    n_valid = vocab_size if n_valid is None else n_valid
    if not len(prompt_ids):
        raise UserError("the prompt is empty: generation needs at least one token to continue")
    for token in prompt_ids:
        if not 0 <= token < vocab_size:
            raise UserError(f"prompt token id {token} is outside the model's vocabulary of {vocab_size}")
    if max_tokens < 0:
        raise UserError(f"max_tokens must not be negative: got {max_tokens}")
    if len(prompt_ids) + max_tokens > seq_len:
        raise UserError(
            f"a prompt of {len(prompt_ids)} tokens and max_tokens {max_tokens} are "
            f"{len(prompt_ids) + max_tokens} together, more than the model's seq_len {seq_len}"
        )
    if not temperature >= 0 or top_k < 0 or not 0 < top_p <= 1 or not 1 <= n_valid <= vocab_size:
        raise UserError(
            "generation needs temperature >= 0, top_k >= 0, 0 < top_p <= 1 and 1 <= n_valid <= vocab_size: "
            f"got {temperature}, {top_k}, {top_p} and {n_valid}"
        )
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return _generate(model, list(prompt_ids), max_tokens, temperature, top_k, top_p, generator, stop_ids, n_valid)


def _generate(
    model: Decoder,
    tokens: list[int],
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    generator: torch.Generator,
    stop_ids: Collection[int],
    n_valid: int,
) -> Iterator[int]:
    cache = model.new_cache(1, len(tokens) + max_tokens)
    device = model.head_weight.device
    for _ in range(max_tokens):
        with torch.no_grad():  # not around the yield: it would reach into the caller's code
            hidden = model.hidden(torch.tensor([tokens], device=device), cache=cache)
            logits = F.linear(hidden[0, -1], model.head_weight)[:n_valid]
            token = sample(logits, generator, temperature=temperature, top_k=top_k, top_p=top_p)
        if token in stop_ids:
            return
        yield token
        tokens = [token]


def sample(
    logits: Tensor, generator: torch.Generator, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> int:
    """One id drawn from `logits` [V]; settings as in `generate`; `generator` is on the CPU.

    Raises:
        UserError: the largest logit is not a finite number: the model has diverged, or its weights are damaged.
    """
    if not math.isfinite(highest := float(logits.max())):
        raise UserError(f"the model's largest logit is {highest}: it has diverged, or its weights are damaged")
    if temperature == 0:
        return int(logits.argmax())
    # On the CPU, so that a seed means the same everywhere.
    logits = logits.cpu().to(torch.promote_types(logits.dtype, torch.float32))
    scaled = (logits - logits.max()) / temperature  # the maximum first: a tiny temperature must not overflow
    if 0 < top_k < scaled.numel():
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[-1], -torch.inf)
    probabilities = scaled.softmax(-1)
    if top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        kept = ordered.cumsum(-1) - ordered < top_p  # a token stays if those before it fall short of top_p
        probabilities = torch.zeros_like(probabilities).scatter(0, order, ordered * kept)
    return int(torch.multinomial(probabilities, 1, generator=generator))
