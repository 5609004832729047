"""What a source of text is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from danalab.errors import UserError


class Source(ABC):
    """Documents in an order that is the same each time."""

    name: ClassVar[str]
    licence: ClassVar[str]
    summary: ClassVar[str]
    ready: ClassVar[bool] = False
    """Needs neither network nor input files: may be prepared when a run asks for it."""
    default_tokenizer: ClassVar[str] = "bpe-4096"
    val_fraction: ClassVar[float] = 0.01
    """Share of the documents that validate, unless the source has validation documents of its own."""

    @classmethod
    def build(cls, inputs: Sequence[str | Path], val_inputs: Sequence[str | Path]) -> Source:
        """An instance; sources that read files from `inputs` override this."""
        if inputs or val_inputs:
            raise UserError(f"the source '{cls.name}' takes no --input; for your own files: danalab data prepare text")
        return cls()

    @abstractmethod
    def iter_documents(self) -> Iterator[str]:
        """The documents: what is trained on, and what validates when `iter_validation` has nothing."""

    def iter_validation(self) -> Iterator[str] | None:
        """The source's own validation documents; None when there are none."""
        return None

    @abstractmethod
    def size_bytes(self) -> int | None:
        """Bytes of text of all documents, about; None when unknown before reading."""

    @abstractmethod
    def identity(self) -> str:
        """A string that changes when the documents do (names, sizes, times: nothing is read)."""
