"""The base class of text sources: documents in a fixed order, in parts that can be read from any position."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from danalab.data.tokenizers import Tokenizer, load_tokenizer, requested_size, tokenizer_path
from danalab.errors import UserError
from danalab.files import environment_path

TRAIN, VAL = "train", "val"


def datasets_folder() -> Path:
    """The default folder of data sets: `$DATASETS_DIR`, else ./datasets."""
    return environment_path("DATASETS_DIR") or Path("datasets")


Place = tuple[int, int]
"""A position in a source: all earlier parts, and so many documents of part number `place[0]`, have been read."""


class Source(ABC):
    """Documents in a fixed order."""

    name: ClassVar[str]
    licence: ClassVar[str]
    ready: ClassVar[bool] = False
    """Needs neither network nor input files: a run may prepare it automatically."""
    default_tokenizer: str = "bpe-4096"
    default_max_tokens: ClassVar[int | None] = None
    """Training tokens of a source without an end, where neither tokens nor documents are limited."""
    val_fraction: float = 0.01
    """Share of the documents that validate, unless the source has its own validation documents."""
    report: str = ""
    """The files that are read, and those that are not, for the line at the end; empty for one without files."""
    folders: ClassVar[tuple[str, ...]] = ()
    """Names of folders in which other software stores this corpus as raw GPT-2 tokens, e.g. fineweb-10BT."""

    @classmethod
    def build(cls, inputs: Sequence[str | Path], val_inputs: Sequence[str | Path]) -> "Source":
        """An instance; sources that read files from `inputs` override this."""
        if inputs or val_inputs:
            raise UserError(
                f"the source '{cls.name}' takes no --input; for your own files: danalab data prepare text"
            )
        return cls()

    @classmethod
    def dataset_folder(cls, tokenizer: str | Path, root: Path | None = None) -> Path:
        """NAME-TOKENIZER in the folder of data sets; a tokenizer given by its path adds its name and fingerprint."""
        path = tokenizer_path(tokenizer)
        if path is not None:
            loaded = load_tokenizer(path)
            tokenizer = f"{loaded.name}-{loaded.fingerprint[:8]}"
        return (root or datasets_folder()) / f"{cls.name}-{tokenizer}"

    def make_tokenizer(self, name: str | Path) -> Tokenizer | None:
        """The tokenizer called `name`, or that of a path; None if it has to be trained on the documents (`bpe-N`)."""
        return None if requested_size(name) else load_tokenizer(name)

    def iter_documents(self) -> Iterator[str]:
        """The documents to train on, and to validate on where the source has no own ones for it."""
        return (text for _, text in walk(self, TRAIN))

    def parts(self, side: str) -> int | None:
        """Number of parts (files) of a side; None without this side, e.g. VAL where documents of TRAIN validate."""
        return 1 if side == TRAIN else None

    def iter_part(self, side: str, number: int, skip: int = 0) -> Iterator[str]:
        """Documents of a part after the first `skip`, empty ones included; overridden, with `parts`, for many files."""
        return itertools.islice(self.iter_documents(), skip, None)

    @abstractmethod
    def size_bytes(self) -> int | None:
        """Approximate bytes of text of all documents; None if unknown before reading."""

    @abstractmethod
    def identity(self) -> str:
        """A string that changes with the documents (names, sizes, times; nothing is read)."""

    def pin(self, origin: dict[str, Any]) -> dict[str, Any]:
        """Fix what could change, e.g. a commit, and return it; a resumed preparation gives it back as `origin`."""
        return origin


def walk(source: Source, side: str, start: Place = (0, 0)) -> Iterator[tuple[Place, str]]:
    """The documents with text of a side after `start`, each with the place after it."""
    first, skip = start
    for part in range(first, source.parts(side) or 0):
        begin = skip if part == first else 0
        for count, text in enumerate(source.iter_part(side, part, begin), begin + 1):
            if text:
                yield (part, count), text
