"""What a run must know of its data before reading any: enough to plan it, without preparing it. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from danalab.errors import UserError


class Vocabulary(Protocol):
    """The properties of `danalab.data.Dataset` that a plan needs."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer_name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def least_vocab_size(self) -> int: ...
    @property
    def sequence_length(self) -> int | None: ...
    @property
    def eos_id(self) -> int | None: ...


@dataclass(frozen=True)
class VocabularyInfo:
    """A `Vocabulary` in plain values."""

    name: str
    tokenizer_name: str
    vocab_size: int
    least_vocab_size: int
    eos_id: int | None
    sequence_length: int | None = None


def merge_vocabularies(parts: Sequence[Vocabulary]) -> VocabularyInfo:
    """The vocabulary of several data sets together."""
    first = parts[0]
    for part in parts[1:]:
        if (part.tokenizer_name, part.eos_id) != (first.tokenizer_name, first.eos_id):
            raise UserError(
                f"{part.name}: written with {part.tokenizer_name}, but {first.name} with {first.tokenizer_name}; "
                "a mixture needs one tokenizer"
            )
    return VocabularyInfo(
        name="+".join(part.name for part in parts),
        tokenizer_name=first.tokenizer_name,
        vocab_size=max(part.vocab_size for part in parts),
        least_vocab_size=max(part.least_vocab_size for part in parts),
        eos_id=first.eos_id,
        sequence_length=min(
            (part.sequence_length for part in parts if part.sequence_length is not None), default=None
        ),
    )
