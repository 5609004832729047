"""What a run must know of its data before any is read: enough to plan a run, and had without preparing anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from danalab.data.open import Unprepared, find_dataset
from danalab.data.tokenizers import EOS, Gpt2Tokenizer, eos_of_size, load_tokenizer, requested_size
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError


class Vocabulary(Protocol):
    """Properties as of `danalab.data.Dataset`."""

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
class Words:
    """A `Vocabulary` in plain values."""

    name: str
    tokenizer_name: str
    vocab_size: int
    least_vocab_size: int
    eos_id: int | None
    sequence_length: int | None = None


def vocabulary_of(data: str | Path, tokenizer: str | Path | None = None) -> Vocabulary:
    """Of what a person writes after `--data`. Data sets that are there are opened; of one that a run would prepare now
    it is what it will have.

    Raises:
        UserError: see `resolve_dataset`, `open_dataset` and `parse_mixture`.
    """
    from danalab.data.order.mixture import parse_mixture

    pairs = parse_mixture(str(data))
    if pairs is None:
        return _of(find_dataset(data, tokenizer))
    return of_mixture([_of(find_dataset(name, tokenizer)) for name, _ in pairs])


def of_mixture(parts: Sequence[Vocabulary]) -> Words:
    """Of several data sets as one.

    Raises:
        UserError: they were not written with one tokenizer.
    """
    first = parts[0]
    for part in parts[1:]:
        if (part.tokenizer_name, part.eos_id) != (first.tokenizer_name, first.eos_id):
            raise UserError(
                f"{part.name}: written with {part.tokenizer_name}, but {first.name} with {first.tokenizer_name}; "
                "a mixture needs one tokenizer"
            )
    return Words(
        name="+".join(part.name for part in parts),
        tokenizer_name=first.tokenizer_name,
        vocab_size=max(part.vocab_size for part in parts),
        least_vocab_size=max(part.least_vocab_size for part in parts),
        eos_id=first.eos_id,
        sequence_length=min((part.sequence_length for part in parts if part.sequence_length is not None), default=None),
    )


def _of(found: Path | Unprepared) -> Vocabulary:
    if isinstance(found, Path):
        from danalab.data.dataset import open_dataset

        return open_dataset(found)
    if size := requested_size(found.tokenizer):
        name, n_tokens, eos_id = found.tokenizer, size, eos_of_size(size)
    elif found.tokenizer == Gpt2Tokenizer.name:  # whose tables may have to be fetched
        name, n_tokens, eos_id = Gpt2Tokenizer.name, Gpt2Tokenizer.n_tokens, Gpt2Tokenizer.specials[EOS]
    else:
        made = load_tokenizer(found.tokenizer)
        name, n_tokens, eos_id = made.name, made.n_tokens, made.eos_id
    return Words(found.folder.name, name, padded(n_tokens), padded(n_tokens), eos_id)
