"""What a run must know of its data before reading any: enough to plan it, without preparing it. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from danalab.errors import UserError


@dataclass(eq=False)
class Vocabulary:
    """The ids of a data set; `Dataset` has these fields, too."""

    name: str
    """The name that runs on it carry."""
    tokenizer_name: str
    """E.g. "gpt2"."""
    vocab_size: int
    """Rows that a model's embedding needs (padded)."""
    least_vocab_size: int
    """The minimum number of rows."""
    eos_id: int | None
    """Id that ends each document; None if unknown."""
    sequence_length: int | None = None
    """Tokens of each sequence, if the data are sequences already."""


def merge_vocabularies(parts: Sequence[Vocabulary]) -> Vocabulary:
    """The vocabulary of several data sets together."""
    first = parts[0]
    for part in parts[1:]:
        if (part.tokenizer_name, part.eos_id) != (first.tokenizer_name, first.eos_id):
            raise UserError(
                f"{part.name}: written with {part.tokenizer_name}, but {first.name} with {first.tokenizer_name}; "
                "a mixture needs one tokenizer"
            )
    lengths = [part.sequence_length for part in parts if part.sequence_length is not None]
    return Vocabulary(
        name="+".join(part.name for part in parts),
        tokenizer_name=first.tokenizer_name,
        vocab_size=max(part.vocab_size for part in parts),
        least_vocab_size=max(part.least_vocab_size for part in parts),
        eos_id=first.eos_id,
        sequence_length=min(lengths, default=None),
    )
