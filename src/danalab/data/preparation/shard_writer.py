"""The shards that a preparation writes, and its journal: resuming neither loses nor repeats a document."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from danalab import __version__
from danalab.data.formats.manifest import Manifest, TokenizerEntry, checksum_of
from danalab.data.formats.shards import Count, ShardEntry, ShardWriter, token_dtype
from danalab.data.preparation.workers import Encoded, Result
from danalab.data.sources import TRAIN, VAL, Source, SourcePosition
from danalab.data.tokenizers import Tokenizer
from danalab.errors import UserError
from danalab.files import read_json, sha256, validated, write_json

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
        self._folder = folder
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._journal = journal
        self._shard_tokens = shard_tokens
        self._max_tokens = max_tokens
        self._source = source
        self._own_validation = source.parts(VAL) is not None
        self._open: dict[str, ShardWriter] = {}
        self._since_journal = 0
        for split in (TRAIN, VAL):
            state = journal.splits.setdefault(split, SplitState())
            if state.tokens:
                self._open[split] = self._writer(split, state.tokens)

    def _states(self) -> list[SplitState]:
        return list(self._journal.splits.values())

    @property
    def tokens(self) -> int:
        """Tokens so far, including those of earlier attempts."""
        return sum(self._tokens_of(split) for split in self._journal.splits)

    def _tokens_of(self, split: str) -> int:
        state = self._journal.splits[split]
        return state.tokens + sum(entry.tokens for entry in state.finished)

    @property
    def counts(self) -> tuple[int, int]:
        """Training and validation documents so far."""
        train, val = (
            state.documents + sum(entry.documents for entry in state.finished)
            for state in (self._journal.splits[TRAIN], self._journal.splits[VAL])
        )
        return train, val

    @property
    def text_bytes(self) -> int:
        """Bytes of text so far, including those of earlier attempts."""
        return sum(s.text_bytes + sum(e.text_bytes for e in s.finished) for s in self._states())

    def enough(self) -> bool:
        """Whether the training split is complete."""
        return self._full(TRAIN)

    def _full(self, split: str) -> bool:
        return self._max_tokens is not None and self._tokens_of(split) >= self._max_tokens

    @property
    def complete(self) -> bool:
        """Whether all requested tokens and a validation split are there."""
        return self._full(TRAIN) and (self._full(VAL) if self._own_validation else self.counts[1] > 0)

    def _writer(self, split: str, flushed_tokens: int = 0) -> ShardWriter:
        number = len(self._journal.splits[split].finished)
        path = self._folder / f"{split}-{number:05d}.bin"
        return ShardWriter(path, self._dtype, self._tokenizer.fingerprint, flushed_tokens)

    def add(self, place: SourcePosition, result: Result) -> None:
        """Append one chunk's documents; `place` is the place after them."""
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
        self._journal.place = place
        if ended or self._since_journal >= _JOURNAL_BYTES:
            for writer in self._open.values():
                writer.flush()
            self._journal.write(self._folder)
            self._since_journal = 0

    def _within_limit(self, split: str, encoded: Encoded) -> Encoded:
        """The documents up to the one that reaches the limit, independent of read-ahead."""
        if self._max_tokens is None or (split == VAL and not self._own_validation):
            return encoded
        left = self._max_tokens - self._tokens_of(split)
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
        tokenizer = self._tokenizer
        return Manifest(
            tokenizer=TokenizerEntry(
                name=tokenizer.name,
                fingerprint=tokenizer.fingerprint,
                n_tokens=tokenizer.n_tokens,
                vocab_size=tokenizer.vocab_size,
                eos_id=tokenizer.eos_id,
            ),
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

    __pydantic_config__ = ConfigDict(extra="forbid")

    def write(self, folder: Path) -> None:
        """Write into the folder, atomically, with a checksum."""
        content = asdict(self)
        write_json(folder / JOURNAL, {**content, "checksum": checksum_of(content)})

    @classmethod
    def read(cls, folder: Path) -> Journal | None:
        """The journal of an unfinished preparation in the folder; None when there is none."""
        file = folder / JOURNAL
        if not file.is_file():
            return None
        content = read_json(file)
        if not isinstance(content, dict) or content.pop("checksum", None) != checksum_of(content):
            raise UserError(f"{file}: damaged (checksum); delete the folder and prepare it again")
        return validated(cls, content, file)


@dataclass
class SplitState:
    """One split: its finished shards, and the flushed part of the open one."""

    finished: list[ShardEntry] = field(default_factory=list)
    tokens: Count = 0
    documents: Count = 0
    text_bytes: Count = 0

    __pydantic_config__ = ConfigDict(extra="forbid")
