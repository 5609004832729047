"""One token from the logits of the next position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from danalab.errors import UserError


def sample(
    logits: Tensor, generator: torch.Generator, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> int:
    """One id drawn from `logits` [V]; settings as in `SamplingParameters`; `generator` is on the CPU.

    Raises:
        UserError: the largest logit is not finite: the model has diverged, or its weights are damaged.
    """
    if not math.isfinite(highest := float(logits.max())):
        raise UserError(f"the model's largest logit is {highest}: it has diverged, or its weights are damaged")
    if temperature == 0:
        return int(logits.argmax())
    # On the CPU, so that a seed has the same meaning on every device.
    logits = logits.cpu().to(torch.promote_types(logits.dtype, torch.float32))
    scaled = (logits - logits.max()) / temperature  # the maximum first: a tiny temperature must not overflow
    if 0 < top_k < scaled.numel():
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[-1], -torch.inf)
    probabilities = scaled.softmax(-1)
    if top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        kept = ordered.cumsum(-1) - ordered < top_p  # a token stays if the more likely ones sum to less than top_p
        probabilities = torch.zeros_like(probabilities).scatter(0, order, ordered * kept)
    return int(torch.multinomial(probabilities, 1, generator=generator))
