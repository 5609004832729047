"""From a source to a data set: documents -> split -> ids on all cores -> shards -> manifest.

    prepare("stdlib", "bpe-4096", "datasets/stdlib-bpe-4096")
    prepare("text", "gpt2", "datasets/mine", inputs=["corpus/"])

Killed at any moment, it goes on where the journal says and ends with the same bytes.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from danalab import __version__
from danalab.data import journal as journals
from danalab.data import manifest as manifests
from danalab.data.journal import Journal, SplitState
from danalab.data.manifest import Manifest, TokenizerEntry
from danalab.data.progress import Progress
from danalab.data.resolve import dataset_folder
from danalab.data.shards import ShardWriter, token_dtype
from danalab.data.sources import Source, make_source
from danalab.data.split import TRAIN, VAL, Labelled, draw, labelled
from danalab.data.tokenizers import Tokenizer, load_tokenizer, train_bpe
from danalab.data.workers import Result, available_cores, encode_in_order
from danalab.errors import UserError
from danalab.files import sha256

SHARD_TOKENS = 100_000_000
_CHUNK_CHARACTERS = 1_000_000  # large enough that the pipe costs nothing, small enough that all cores stay busy
_CHUNK_DOCUMENTS = 1024
_JOURNAL_BYTES = 64_000_000
_SMALL = 2_000_000  # text below this size is not worth the start of processes [bytes]
_SAMPLE_BYTES, _SAMPLE_DOCUMENT = 3_000_000, 100_000


def prepare(
    source: str | Source,
    tokenizer: str | Path | None = None,
    out: str | Path | None = None,
    *,
    inputs: Sequence[str | Path] = (),
    val_inputs: Sequence[str | Path] = (),
    val_fraction: float | None = None,
    shard_tokens: int = SHARD_TOKENS,
    workers: int | None = None,
    progress: bool = True,
) -> Path:
    """Write a source's tokens as a data set; returns its folder. Preparing the same again is no work.

    Args:
        source: name of a source, or one.
        tokenizer: `bytes`, `gpt2`, `bpe-N` (trained here, on a sample of the source's training documents), or the path
            of a saved tokenizer; by default the source's.
        out: the folder; by default NAME-TOKENIZER in `$DATASETS_DIR`, or in ./datasets.
        inputs, val_inputs: files and folders, for sources that read them.
        val_fraction: share of the documents that validate, in (0, 1); by default the source's.
        shard_tokens: a shard ends at the first chunk of documents (about 1 MB of text) that brings it to this size.
        workers: processes that tokenise; by default one a core.
        progress: show progress and a closing line on standard error.

    Raises:
        UserError: bad source, tokenizer, text or settings, or a folder that holds something else.
    """
    if isinstance(source, str):
        source = make_source(source, inputs, val_inputs)
    fraction = source.val_fraction if val_fraction is None else val_fraction
    if not 0 < fraction < 1:
        raise UserError(f"--val-fraction {fraction}: a share between 0 and 1 is needed")
    if shard_tokens < 1 or (workers is not None and workers < 1):
        raise UserError("--shard-tokens and --workers: at least 1 is needed")
    tokenizer = str(tokenizer or source.default_tokenizer)
    merges = _bpe_size(tokenizer)
    chosen = None if merges else load_tokenizer(tokenizer)
    folder = Path(out) if out else dataset_folder(source.name, tokenizer, chosen)
    request = _request(source, chosen.fingerprint if chosen else tokenizer, fraction, shard_tokens)

    if (folder / manifests.NAME).is_file():
        return _already(folder, request)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if (folder / manifests.NAME).is_file():
            return _already(folder, request)
        journal = _begin(folder, request)
        begun = time.perf_counter()
        if chosen is None and not (folder / "tokenizer.json").is_file():
            chosen = train_bpe(_sample(source, fraction), merges, tokenizer)
        if chosen is None:
            chosen = load_tokenizer(folder)
        else:
            chosen.save(folder)
        writing = _Writing(folder, chosen, journal, shard_tokens)
        if workers is None:
            size = source.size_bytes()
            workers = 1 if size is not None and size < _SMALL else available_cores()
        with Progress(f"tokenising {source.name}", source.size_bytes(), shown=progress) as bar:
            documents = itertools.islice(labelled(source, fraction), journal.documents, None)
            try:
                for result in encode_in_order(chosen, folder, _chunks(documents), workers):
                    writing.add(result)
                    bar.show(writing.text_bytes, writing.tokens)
                made = writing.finish(source, fraction)
            finally:
                writing.close()
        made.write(folder)
        (folder / journals.NAME).unlink()
    if progress:
        seconds = time.perf_counter() - begun
        print(f"prepared {_summary(made)} in {seconds:.1f} s: {folder}", file=sys.stderr)
    return folder


def _bpe_size(tokenizer: str) -> int:
    """N of `bpe-N`, else 0."""
    number = tokenizer[4:]
    return int(number) if tokenizer.startswith("bpe-") and number.isdigit() and not Path(tokenizer).exists() else 0


def _request(source: Source, tokenizer: str, fraction: float, shard_tokens: int) -> str:
    what = [source.name, source.identity(), tokenizer, fraction, shard_tokens, _CHUNK_CHARACTERS, _CHUNK_DOCUMENTS, 1]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One preparation of a folder at a time: several ranks may ask for the same data set at once."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        # Only on success: from here on everyone finds the manifest, whichever file they hold.
        (folder / ".lock").unlink(missing_ok=True)


def _already(folder: Path, request: str) -> Path:
    made = Manifest.read(folder)
    if made.request != request:
        raise UserError(
            f"{folder}: holds a data set made from other text or with other settings "
            f"({made.source['name']}, {made.tokenizer.name}); choose another --out or delete the folder"
        )
    return folder


def _begin(folder: Path, request: str) -> Journal:
    """The journal to go on with; what an unfinished preparation of something else left is removed."""
    journal = Journal.read(folder)
    if journal is not None and journal.request == request:
        return journal
    if journal is not None:
        for path in folder.iterdir():
            if path.name.endswith((".bin", ".bin.part")) or path.name.startswith("tokenizer"):
                path.unlink()
    elif strangers := sorted(path.name for path in folder.iterdir() if path.name != ".lock"):
        raise UserError(f"{folder}: not empty ({strangers[0]}) and not a data set; choose another --out")
    journal = Journal(request)
    journal.write(folder)
    return journal


def _sample(source: Source, fraction: float) -> Iterator[str]:
    """About 3 MB of training text, spread over the corpus by a hash: merges are learned in a second from that."""
    size = source.size_bytes()
    share = 1.0 if size is None else _SAMPLE_BYTES / max(size, 1)
    left = _SAMPLE_BYTES
    for split, text in labelled(source, fraction):
        if split == TRAIN and draw(text, "danalab sample 1") < share:
            yield text[: min(left, _SAMPLE_DOCUMENT)]
            left -= min(len(text), _SAMPLE_DOCUMENT)
            if left <= 0:
                return


def _chunks(documents: Iterator[Labelled]) -> Iterator[list[Labelled]]:
    chunk: list[Labelled] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document[1])
        if size >= _CHUNK_CHARACTERS or len(chunk) >= _CHUNK_DOCUMENTS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Writing:
    """The shards being written, and the journal that follows them."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, journal: Journal, shard_tokens: int):
        self._folder = folder
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._journal = journal
        self._shard_tokens = shard_tokens
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
        """Tokens so far, an earlier attempt's included."""
        return sum(s.tokens + sum(e.tokens for e in s.finished) for s in self._states())

    @property
    def text_bytes(self) -> int:
        """Bytes of text so far, an earlier attempt's included."""
        return sum(s.text_bytes + sum(e.text_bytes for e in s.finished) for s in self._states())

    def _writer(self, split: str, flushed_tokens: int = 0) -> ShardWriter:
        number = len(self._journal.splits[split].finished)
        path = self._folder / f"{split}-{number:05d}.bin"
        return ShardWriter(path, self._dtype, self._tokenizer.fingerprint, flushed_tokens)

    def add(self, result: Result) -> None:
        """Append one chunk's documents."""
        full = False
        for split, encoded in result.items():
            if split not in self._open:
                self._open[split] = self._writer(split)
            state = self._journal.splits[split]
            self._open[split].append(encoded.ids)
            state.tokens += len(encoded.ids)
            state.documents += encoded.documents
            state.text_bytes += encoded.text_bytes
            self._journal.documents += encoded.documents
            self._since_journal += encoded.text_bytes
            if state.tokens >= self._shard_tokens:
                self._finish_shard(split)
                full = True
        if full or self._since_journal >= _JOURNAL_BYTES:
            for writer in self._open.values():
                writer.flush()
            self._journal.write(self._folder)
            self._since_journal = 0

    def _finish_shard(self, split: str) -> None:
        state = self._journal.splits[split]
        entry = self._open.pop(split).finish(state.documents, state.text_bytes)
        self._journal.splits[split] = SplitState([*state.finished, entry])

    def finish(self, source: Source, fraction: float) -> Manifest:
        """Complete the open shards; returns the manifest, not yet written."""
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
            source={"name": source.name, "licence": source.licence, "val_fraction": fraction},
            splits={split: state.finished for split, state in self._journal.splits.items()},
            request=self._journal.request,
            danalab=__version__,
            files={name: sha256(self._folder / name) for name in ("tokenizer.json", "tokenizer_config.json")},
        )

    def close(self) -> None:
        """Close what an error left open."""
        for writer in self._open.values():
            writer.close()


def _summary(made: Manifest) -> str:
    totals = {split: sum(entry.tokens for entry in entries) for split, entries in made.splits.items()}
    documents = sum(entry.documents for entries in made.splits.values() for entry in entries)
    parts = " + ".join(f"{count:,} {split}" for split, count in totals.items())
    return f"{made.source['name']} with {made.tokenizer.name}: {parts} tokens of {documents:,} documents"
