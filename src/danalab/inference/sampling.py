"""The next token of every sequence of a batch, in one pass over their logits.

A token is drawn by inverting the cumulative distribution at a uniform number that depends only on the request's seed
and the number of tokens drawn before: neither the batch nor the device matters. Shapes: N sequences, V tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from danalab.inference.request import RequestState

_MASK = (1 << 64) - 1


class DrawnTokens(NamedTuple):
    """What was drawn for each sequence."""

    tokens: list[int]
    """-1 where no token could be drawn: the logits are not finite, or no token is allowed."""
    logprobs: list[float]
    tops: list[Sequence[tuple[int, float]]]


def uniform(seed: int, number: int) -> float:
    """A number in [0, 1), from the seed and the number of the draw (SplitMix64, 53 bits)."""
    x = ((seed & _MASK) * 0x9E3779B97F4A7C15 + (number + 1) * 0xD1342543DE82EF95) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53


Sampler = Callable[[Tensor, Sequence[RequestState]], DrawnTokens]
"""(logits of sequences, the sequences) -> their tokens."""


def draw(logits_NV: Tensor, sequences: Sequence[RequestState], plain: Sampler | None = None) -> DrawnTokens:
    """The next token of each sequence by its row of logits, modified in place; `plain` draws by temperature alone."""
    n, is_plain = len(sequences), [plain is not None and each.plain for each in sequences]
    drawn = DrawnTokens([-1] * n, [math.nan] * n, [()] * n)
    for sampler, chosen in ((plain, True), (_draw, False)):
        rows = [row for row in range(n) if is_plain[row] == chosen]
        if sampler is not None and rows:
            logits = logits_NV if len(rows) == n else logits_NV[rows]
            part = sampler(logits, [sequences[row] for row in rows])
            for row, token, logprob, top in zip(rows, *part, strict=True):
                drawn.tokens[row], drawn.logprobs[row], drawn.tops[row] = token, logprob, top
    return drawn


def _draw(logits_NV: Tensor, sequences: Sequence[RequestState]) -> DrawnTokens:
    # Penalties, biases and constraints are applied on the host. The rest is computed where the logits are, unless only
    # deterministic kernels are allowed: GPUs have none for cumulative sums.
    adjusted = [
        (row, sequence)
        for row, sequence in enumerate(sequences)
        if sequence.seen is not None
        or sequence.parameters.logit_bias
        or sequence.request.constraint is not None
    ]
    on_host = adjusted or torch.are_deterministic_algorithms_enabled()
    device = torch.device("cpu") if on_host else logits_NV.device
    logits = logits_NV.to(device, torch.promote_types(logits_NV.dtype, torch.float32))
    own = [row for row, sequence in enumerate(sequences) if sequence.parameters.logprobs is not None]
    own_log_p = logits[own].log_softmax(-1)
    for row, sequence in adjusted:
        adjust(logits[row], sequence)
    highest, greedy = logits.max(dim=-1, keepdim=True)
    sound = highest.squeeze(-1).isfinite().tolist()
    shifted = logits - highest
    sampled = [
        row for row, sequence in enumerate(sequences) if sequence.parameters.temperature > 0 and sound[row]
    ]
    chosen = greedy.squeeze(-1)
    if sampled:
        part = _truncated(shifted[sampled], [sequences[row].parameters for row in sampled])
        points = [uniform(sequences[row].seed, sequences[row].drawn) for row in sampled]
        chosen[sampled] = _invert(part, torch.tensor(points, dtype=torch.float64, device=device))
        shifted[sampled] = part
    log_p = shifted - shifted.logsumexp(-1, keepdim=True)
    log_p[own] = own_log_p
    logprobs = log_p.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).tolist()
    tops = [_top(log_p[row], sequence.parameters.logprobs or 0) for row, sequence in enumerate(sequences)]
    tokens = [token if fine else -1 for token, fine in zip(chosen.tolist(), sound, strict=True)]
    return DrawnTokens(
        tokens, [value if fine else math.nan for value, fine in zip(logprobs, sound, strict=True)], tops
    )


def adjust(logits_V: Tensor, sequence: RequestState) -> None:
    """Penalties, bias and constraint of one sequence, in place."""
    parameters = sequence.parameters
    if sequence.seen is not None and sequence.counts is not None:
        if parameters.repetition_penalty != 1 and sequence.seen:
            seen = torch.tensor(sorted(token for token in sequence.seen if token < len(logits_V)))
            old = logits_V[seen]
            factor = parameters.repetition_penalty
            logits_V[seen] = torch.where(old > 0, old / factor, old * factor)
        if sequence.counts and (parameters.presence_penalty or parameters.frequency_penalty):
            tokens, counts = (
                torch.tensor(list(part)) for part in (sequence.counts.keys(), sequence.counts.values())
            )
            logits_V[tokens] -= parameters.presence_penalty + parameters.frequency_penalty * counts.to(
                logits_V.dtype
            )
    if parameters.logit_bias:
        tokens, biases = (
            list(part) for part in (parameters.logit_bias.keys(), parameters.logit_bias.values())
        )
        logits_V[torch.tensor(tokens)] += torch.tensor(biases, dtype=logits_V.dtype)
    if sequence.request.constraint is not None:
        mask = torch.as_tensor(sequence.request.constraint.mask(), dtype=torch.bool)[: len(logits_V)]
        logits_V[: len(mask)].masked_fill_(~mask, -torch.inf)
        logits_V[len(mask) :] = -torch.inf


def _truncated(shifted_NV: Tensor, settings: list[Any]) -> Tensor:
    """Logits after temperature, top-k, top-p and min-p; -inf where a token is excluded."""

    def column(name: str) -> Tensor:
        return torch.tensor([getattr(each, name) for each in settings], device=shifted_NV.device).unsqueeze(
            -1
        )

    # The maximum is 0: a tiny temperature does not overflow.
    scaled = shifted_NV / column("temperature").to(shifted_NV.dtype).clamp(
        min=torch.finfo(shifted_NV.dtype).tiny
    )
    size = scaled.shape[-1]
    if any(0 < each.top_k < size for each in settings):
        kept = [min(each.top_k, size) or size for each in settings]
        rank = torch.tensor(kept, device=shifted_NV.device).unsqueeze(-1) - 1
        least = scaled.sort(dim=-1, descending=True).values.gather(-1, rank)
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if any(each.top_p < 1 for each in settings):
        p = scaled.softmax(-1)
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        # A token stays if the more likely ones sum to less than top_p.
        out = (ordered.cumsum(-1) - ordered >= column("top_p").to(p.dtype)) & (column("top_p") < 1)
        scaled = scaled.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)
    if any(each.min_p > 0 for each in settings):
        # The largest probability is that of the logit 0.
        scaled = scaled.masked_fill(scaled < column("min_p").to(scaled.dtype).log(), -torch.inf)
    return scaled


def _invert(scaled_NV: Tensor, points_N: Tensor) -> Tensor:
    """The first token at which the cumulative probability exceeds the row's point, int64 [N]."""
    mass = scaled_NV.double().exp()
    total = mass.cumsum(-1)
    targets = (points_N.unsqueeze(-1) * total[:, -1:]).clamp(max=total[:, -1:])
    first = torch.searchsorted(total, targets, right=True).squeeze(-1)
    last = (
        (mass > 0).to(torch.uint8).flip(-1).argmax(-1)
    )  # rounding never reaches beyond the last possible token
    return torch.minimum(first, mass.shape[-1] - 1 - last)


def _top(log_p_V: Tensor, count: int) -> Sequence[tuple[int, float]]:
    if not count:
        return ()
    values, tokens = log_p_V.topk(min(count, len(log_p_V)))
    return list(zip(tokens.tolist(), values.tolist(), strict=True))
