"""Special tokens for base runs whose tokenizer has none: the tokenizer, and the rows of the model's matrices."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from danalab.chat.conversations.special_tokens import missing_specials
from danalab.data.tokenizers.base import Tokenizer, padded
from danalab.errors import UserError

if TYPE_CHECKING:
    from danalab.models.decoder import Decoder

log = logging.getLogger(__name__)


def extend_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with all special tokens of conversations; the ids of its own tokens stay.

    Raises:
        UserError: a kind of tokenizer that cannot be extended.
    """
    missing = missing_specials(tokenizer)
    if not missing:
        return tokenizer
    from tokenizers import Tokenizer as Engine

    from danalab.data.tokenizers import BpeTokenizer

    if not isinstance(tokenizer, BpeTokenizer):
        raise UserError(f"tokenizer {tokenizer.name}: has no special token {missing[0]}, and none can be added")
    engine = Engine.from_str(tokenizer.to_json())
    engine.add_special_tokens(missing)
    extended = BpeTokenizer(engine, tokenizer.name)
    log.info(
        "tokenizer %s has no marks of conversations: %d special tokens are added, ids %d to %d",
        tokenizer.name, len(missing), tokenizer.n_tokens, extended.n_tokens - 1,
    )  # fmt: skip
    return extended


def extend_vocabulary(model: Decoder, n_ids: int) -> Decoder:
    """A model with rows for at least `n_ids` token ids; the same model where it has them.

    New rows of the embedding and of the head are the mean of the others, so that a new token is as likely as an average
    one and no logit is large (Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models").
    """
    if model.config.vocab_size >= n_ids:
        return model
    from dataclasses import replace

    import torch

    from danalab.models import build_model

    old = model.config.vocab_size
    larger = build_model(replace(model.config, vocab_size=padded(n_ids)), device=model.head_weight.device)
    target = larger.state_dict()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            target[name][: len(value)].copy_(value) if value.ndim else target[name].copy_(value)
            if value.ndim and len(target[name]) > len(value):
                target[name][old:] = value.mean(0)
    log.info("the model has %d token ids in place of %d; new rows are the mean of the others", padded(n_ids), old)
    return larger
