"""The choice of the back end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from danalab.errors import UserError, nearest
from danalab.inference.backends.eager import EagerBackend
from danalab.inference.backends.native.backend import WEIGHT_DTYPES, NativeBackend
from danalab.inference.request import RequestState
from danalab.inference.sampling import PlainSampler
from danalab.inference.scheduler import BlockPool, Chunk
from danalab.models.decoder import Decoder

log = logging.getLogger(__name__)

BACKENDS = ("auto", "native", "eager")


class Backend(Protocol):
    """Computes logits."""

    align: int | None
    """Pieces of prompts must end at multiples of this; None: anywhere."""
    reuses: bool
    """Whether prefixes can be reused: not where layers have recurrent states."""

    @property
    def sampler(self) -> PlainSampler | None:
        """Draws tokens of plain sequences; None: torch does."""
        ...

    def run(self, chunks: Sequence[Chunk]) -> tuple[Tensor, list[RequestState]]:
        """Compute the chunks; returns logits [N, V] and the sequences whose next token they give."""
        ...

    def reload(self) -> None:
        """Use the model's present weights."""
        ...


def make_backend(
    model: Decoder,
    pool: BlockPool | None,
    max_batch_size: int,
    step_tokens: int,
    name: str,
    weight_dtype: str | None,
    batch_invariant: bool,
) -> Backend:
    """The back end `name` for a model.

    Raises:
        UserError: it is unknown, or cannot do what is asked for.
    """
    if name not in BACKENDS:
        raise UserError(f"unknown back end '{name}'{nearest(name, BACKENDS)}; known: {', '.join(BACKENDS)}")
    if weight_dtype is not None and weight_dtype not in WEIGHT_DTYPES:
        known = ", ".join(WEIGHT_DTYPES)
        raise UserError(f"unknown weight_dtype '{weight_dtype}'{nearest(weight_dtype, WEIGHT_DTYPES)}; known: {known}")
    weight = model.head_weight
    if batch_invariant and (weight.device.type != "cpu" or weight.dtype != torch.float32):
        raise UserError(
            f"batch invariance needs a float32 model on the CPU: this one is {weight.dtype}, {weight.device}"
        )
    if name != "eager":
        try:
            return NativeBackend(model, pool, max_batch_size, step_tokens, weight_dtype)
        except UserError as error:
            if name == "native" or weight_dtype is not None:
                raise
            log.info("decoding by the model's own layers, which is slower: %s", error)
    elif weight_dtype is not None:
        raise UserError(f"weight_dtype {weight_dtype}: the eager back end computes with the model's own weights")
    return EagerBackend(model, pool, alone=batch_invariant)
