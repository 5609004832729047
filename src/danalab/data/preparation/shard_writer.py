"""The shards that a preparation writes, and its journal: resuming neither loses nor repeats a document."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from danalab import __version__
from danalab.data.formats.shards import (
    Encoding,
    Manifest,
    ShardEntry,
    ShardWriter,
    token_dtype,
)
from danalab.data.preparation.workers import Encoded, Result
from danalab.data.sources import TRAIN, VAL, Source, SourcePosition
from danalab.data.tokenizers import Tokenizer
from danalab.files import sha256, write_json

JOURNAL = "journal.json"
_JOURNAL_BYTES = 64_000_000


class DatasetWriter:
    """Writes encoded chunks in order; starts a new shard when one is full, and stops at `max_tokens`."""

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        journal: Journal,
        shard_tokens: int,
        max_tokens: int | None,
        source: Source,
    ):
        """Continue from `journal`. `max_tokens` limits training and the source's own validation files."""
        self._folder, self._tokenizer, self._journal, self._source = folder, tokenizer, journal, source
        self._shard_tokens, self._max_tokens = shard_tokens, max_tokens
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._own_validation = source.parts(VAL) is not None
        self._open: dict[str, ShardWriter] = {}
        self._since_journal = 0
        for split in (TRAIN, VAL):
            state = journal.splits.setdefault(split, SplitState())
            if state.tokens:
                self._open[split] = self._writer(split, state.tokens)

    def total(self, fact: str) -> int:
        """Sum of "tokens" or "text_bytes" so far, including those of earlier attempts."""
        return sum(state.total(fact) for state in self._journal.splits.values())

    @property
    def counts(self) -> tuple[int, int]:
        """Training and validation documents so far."""
        return self._journal.splits[TRAIN].total("documents"), self._journal.splits[VAL].total("documents")

    def enough(self, split: str = TRAIN) -> bool:
        """Whether the split has all requested tokens."""
        return (
            self._max_tokens is not None and self._journal.splits[split].total("tokens") >= self._max_tokens
        )

    @property
    def complete(self) -> bool:
        """Whether all requested tokens and a validation split are there."""
        return self.enough() and (self.enough(VAL) if self._own_validation else self.counts[1] > 0)

    def _writer(self, split: str, flushed_tokens: int = 0) -> ShardWriter:
        number = len(self._journal.splits[split].finished)
        path = self._folder / f"{split}-{number:05d}.bin"
        return ShardWriter(path, self._dtype, self._tokenizer.fingerprint, flushed_tokens)

    def add(self, position: SourcePosition, result: Result) -> None:
        """Append one chunk's documents; `position` is that after them."""
        ended = False
        for split, whole in result.items():
            encoded = self._within_limit(split, whole)
            if not len(encoded.ends):
                continue
            if split not in self._open:
                self._open[split] = self._writer(split)
            state = self._journal.splits[split]
            self._open[split].append(encoded.ids)
            text_bytes = int(encoded.text_bytes.sum())
            state.tokens += len(encoded.ids)
            state.documents += len(encoded.ends)
            state.text_bytes += text_bytes
            self._since_journal += text_bytes
            if state.tokens >= self._shard_tokens:
                self._finish_shard(split)
                ended = True
        self._journal.place = position
        if ended or self._since_journal >= _JOURNAL_BYTES:
            for writer in self._open.values():
                writer.flush()
            self._journal.write(self._folder)
            self._since_journal = 0

    def _within_limit(self, split: str, encoded: Encoded) -> Encoded:
        """The documents up to the one that reaches the limit, independent of read-ahead."""
        if self._max_tokens is None or (split == VAL and not self._own_validation):
            return encoded
        left = self._max_tokens - self._journal.splits[split].total("tokens")
        if left <= 0:
            return encoded.first(0)
        return encoded.first(min(len(encoded.ends), int(encoded.ends.searchsorted(left)) + 1))

    def _finish_shard(self, split: str) -> None:
        state = self._journal.splits[split]
        entry = self._open.pop(split).finish(state.documents, state.text_bytes)
        self._journal.splits[split] = SplitState([*state.finished, entry])

    def finish(self, origin: dict[str, Any]) -> Manifest:
        """Complete the open shards; returns the unwritten manifest. `origin`: settings that selected the documents."""
        for split in list(self._open):
            self._finish_shard(split)
        return Manifest(
            tokenizer=Encoding.of(self._tokenizer),
            source={"name": self._source.name, "licence": self._source.licence, **origin},
            splits={split: state.finished for split, state in self._journal.splits.items()},
            request=self._journal.request,
            danalab=__version__,
            files={name: sha256(self._folder / name) for name in ("tokenizer.json", "tokenizer_config.json")},
        )

    def close(self) -> None:
        """Close the files that an error left open."""
        for writer in self._open.values():
            writer.close()


@dataclass
class Journal:
    """The state at one document; resuming discards what was written after it."""

    request: str
    origin: dict[str, Any] = field(default_factory=dict)
    """The result of `Source.pin`, passed to it again on resume."""
    place: SourcePosition | None = None
    """The place where reading resumes: the documents before it are in the shards."""
    splits: dict[str, SplitState] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write into the folder."""
        write_json(folder / JOURNAL, asdict(self))


@dataclass
class SplitState:
    """One split: its finished shards, and the flushed part of the open one."""

    finished: list[ShardEntry] = field(default_factory=list)
    tokens: int = 0
    documents: int = 0
    text_bytes: int = 0

    def total(self, fact: str) -> int:
        """The field `fact`, with the finished shards."""
        return getattr(self, fact) + sum(getattr(entry, fact) for entry in self.finished)
