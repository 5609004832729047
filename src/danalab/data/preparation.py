"""From a source to a data set: documents -> split -> ids on all cores -> shards -> manifest.

    prepare("stdlib", "bpe-4096", "datasets/stdlib-bpe-4096")
    prepare("text", "gpt2", "datasets/mine", inputs=["corpus/"])
    prepare("fineweb-10bt", max_tokens=1_000_000_000)

The source is read once for each split. The validation documents are the source's own, or those whose keyed hash is
small: copies of a document are in the same split, and the choice depends neither on the order nor on the cores.

A journal lists the finished shards, and the place in the source after them. After a kill the unfinished shard is
written again, and the data set has the same bytes.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import math
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from danalab import __version__
from danalab.data.formats.shards import (
    HEADER,
    MAGIC,
    MANIFEST,
    MAX_VOCAB,
    VERSION,
    Encoding,
    Manifest,
    ShardEntry,
    token_dtype,
)
from danalab.data.sources import TRAIN, VAL, Place, Source, make_source, walk
from danalab.data.tokenizers import (
    Tokenizer,
    load_tokenizer,
    requested_size,
    train_bpe,
)
from danalab.errors import UserError
from danalab.files import fsync_path, naming, read_state, sha256, write_json
from danalab.hardware import available_cores

JOURNAL = "journal.json"
SHARD_TOKENS = 100_000_000
_CHUNK_CHARACTERS, _CHUNK_DOCUMENTS = 250_000, 1024
_SPLIT = "danalab split 1"  # key of the choice of validation documents
_AHEAD = 4  # chunks read ahead for each core
_SECONDS_PER_LINE = 60.0
_SAMPLE_BYTES, _SAMPLE_DOCUMENT = 3_000_000, 100_000


def prepare(
    source: str | Source,
    tokenizer: str | Path | None = None,
    out: str | Path | None = None,
    *,
    inputs: Sequence[str | Path] = (),
    val_inputs: Sequence[str | Path] = (),
    val_fraction: float | None = None,
    max_tokens: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    progress: bool = True,
) -> Path:
    """Write a source's tokens as a data set; returns its folder. Does nothing if the same data set exists.

    Args:
        source: a source or its name.
        tokenizer: `bytes`, `characters`, `gpt2`, `bpe-N` (trained here, on a sample of the source's training
            documents), or the path of a saved tokenizer; by default the source's.
        out: the folder; by default NAME-TOKENIZER in `$DATASETS_DIR`, or in ./datasets.
        inputs, val_inputs: files and folders, for sources that read them; for a corpus of the hub, one folder with the
            files of its repository.
        val_fraction: share of the documents that validate, in (0, 1); by default the source's.
        max_tokens: training ends after the document that reaches this many tokens; so does validation, if the
            source has its own files for it.
        shard_tokens: a shard ends after the chunk of documents (about 250 kB of text) that reaches this size.
        progress: show progress and a summary on standard error.
    Raises:
        UserError: bad source, tokenizer, text or settings, a folder with other content, or an unreachable hub.
    """
    if isinstance(source, str):
        source = make_source(source, inputs, val_inputs)
    fraction = source.val_fraction if val_fraction is None else val_fraction
    max_tokens = source.default_max_tokens if max_tokens is None else max_tokens
    tokenizer = tokenizer or source.default_tokenizer
    chosen = source.make_tokenizer(tokenizer)
    folder = Path(out) if out else source.dataset_folder(tokenizer)
    removed = [None, None]  # settings of earlier versions, whose data sets are taken as they are
    limits = [fraction, *removed, max_tokens, shard_tokens, _CHUNK_CHARACTERS, _CHUNK_DOCUMENTS]
    what = [source.name, source.identity(), chosen.fingerprint if chosen else str(tokenizer), *limits, 2]
    request = hashlib.sha256(json.dumps(what).encode()).hexdigest()

    if (folder / MANIFEST).is_file():
        return _already(folder, request)
    with _locked(folder):
        if (folder / MANIFEST).is_file():
            return _already(folder, request)
        journal, begun = _begin(folder, request), time.perf_counter()
        journal.origin = source.pin(journal.origin)
        write_json(folder / JOURNAL, asdict(journal))
        own = source.parts(VAL) is not None
        share = None if own else _share(source, fraction)
        for split, use in ((TRAIN, "train"), (VAL, "validate")):
            if next(_documents(source, split, share), None) is None:
                raise UserError(
                    f"the source '{source.name}' has no document to {use} on; give more text, --val-input or another "
                    "--val-fraction"
                )
        if chosen is None and not (folder / "tokenizer.json").is_file():
            chosen = train_bpe(_sample(source, share), requested_size(tokenizer), str(tokenizer))
        if chosen is None:
            chosen = load_tokenizer(folder)
        else:
            chosen.save(folder)
        for split in (TRAIN, VAL):
            part = fraction if split == VAL and not own else 1.0
            limit = part * (max_tokens or math.inf)
            left = limit - sum(entry.tokens for entry in journal.shards[split])
            chunks = _chunks(_documents(source, split, share, journal.places.get(split, (0, 0))), part)
            encoded = _limited(_encoded(chosen, chunks), left) if left > 0 else iter(())
            shown = _with_progress(encoded, source, split, journal, max_tokens) if progress else encoded
            _write(folder, split, journal, chosen, shown, shard_tokens)
        Manifest(
            tokenizer=Encoding.of(chosen),
            source={
                "name": source.name,
                "licence": source.licence,
                "val_fraction": fraction,
                **journal.origin,
            },
            splits=journal.shards,
            request=request,
            danalab=__version__,
            files={name: sha256(folder / name) for name in ("tokenizer.json", "tokenizer_config.json")},
        ).write(folder)
        (folder / JOURNAL).unlink()
    if progress:
        totals = {split: sum(entry.tokens for entry in entries) for split, entries in journal.shards.items()}
        counts = " + ".join(f"{count:,} {split}" for split, count in totals.items())
        seconds = time.perf_counter() - begun
        print(
            f"prepared {source.name} with {chosen.name}: {counts} tokens in {seconds:.1f} s: {folder}",
            file=sys.stderr,
        )
        if source.report:
            print(source.report, file=sys.stderr)
    return folder


@dataclass
class Journal:
    """What is finished of a data set."""

    request: str
    origin: dict[str, Any] = field(default_factory=dict)
    """The result of `Source.pin`, passed to it again on resume."""
    shards: dict[str, list[ShardEntry]] = field(default_factory=lambda: {TRAIN: [], VAL: []})
    places: dict[str, Place] = field(default_factory=dict)
    """The place in the source after the shards of each split."""


class Encoded(NamedTuple):
    """A chunk of documents, each followed by the end-of-text id."""

    place: Place
    """The place after them."""
    ids: np.ndarray
    ends: np.ndarray
    """End of each document in `ids`, int64 [documents]."""
    sizes: np.ndarray
    """UTF-8 bytes of each document's text, int64 [documents]."""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One preparation of a folder at a time: several ranks may request the same data set together.

    One that is refused before its first shard leaves no new folder.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(parents=True, exist_ok=True)  # one that was refused meanwhile has removed it
        try:
            yield
        except UserError:
            if is_new and not list(folder.glob("*.bin")):
                shutil.rmtree(folder, ignore_errors=True)
            elif not (folder / JOURNAL).is_file():
                (folder / ".lock").unlink(missing_ok=True)
            raise
        # Only on success: from now on every process finds the manifest, whichever lock file it holds.
        (folder / ".lock").unlink(missing_ok=True)


def _already(folder: Path, request: str) -> Path:
    made = Manifest.read(folder)
    if made.request != request:
        raise UserError(
            f"{folder}: holds a data set of other text or other settings "
            f"({made.source.get('name')}, {made.tokenizer.name}); choose another --out or delete the folder"
        )
    return folder


def _begin(folder: Path, request: str) -> Journal:
    """The journal to resume from, or a new one; removes the files of another unfinished preparation."""
    if (folder / JOURNAL).is_file():
        journal = read_state(Journal, folder / JOURNAL)
        if journal.request == request:
            return journal
        if any(journal.shards.values()):
            raise UserError(
                f"{folder}: an unfinished data set of other text or other settings; "
                "use the same flags as before, choose another --out, or delete the folder"
            )
        for path in folder.glob("tokenizer*"):
            path.unlink()
    elif others := sorted(path.name for path in folder.iterdir() if path.name != ".lock"):
        raise UserError(f"{folder}: not empty ({others[0]}) and not a data set; choose another --out")
    return Journal(request)


def _draw(text: str, key: str) -> float:
    """A pseudo-random number in [0, 1) determined by the text and the key."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64


def _share(source: Source, fraction: float) -> float:
    """The number below which a document's draw makes it validate: `fraction`, or more, so that at least one does."""
    least = 1.0
    for _, text in walk(source, TRAIN):
        least = min(least, _draw(text, _SPLIT))
        if least < fraction:
            return fraction
    return math.nextafter(least, 1.0)


def _documents(
    source: Source, split: str, share: float | None, start: Place = (0, 0)
) -> Iterator[tuple[Place, str]]:
    """The documents of a split, each with the place after it. `share`: see there; None for the source's own split."""
    for place, text in walk(source, TRAIN if share else split, start):
        if share is None or (_draw(text, _SPLIT) < share) == (split == VAL):
            yield place, text


def _sample(source: Source, share: float | None) -> Iterator[str]:
    """About 3 MB of training text, sampled over the corpus by a hash: enough to learn merges in a second."""
    rate = _SAMPLE_BYTES / max(source.size_bytes() or 0, _SAMPLE_BYTES)
    left = _SAMPLE_BYTES
    for _, text in _documents(source, TRAIN, share):
        if _draw(text, "danalab sample 1") < rate:
            yield text[: min(left, _SAMPLE_DOCUMENT)]
            left -= min(len(text), _SAMPLE_DOCUMENT)
            if left <= 0:
                return


def _chunks(documents: Iterator[tuple[Place, str]], part: float) -> Iterator[tuple[Place, list[str]]]:
    """Texts of several documents, with the place after them; fewer of those that are a `part` of the source, so that
    little is read ahead."""
    texts, size, place = list[str](), 0, (0, 0)
    for place, text in documents:
        texts.append(text)
        size += len(text)
        if size >= part * _CHUNK_CHARACTERS or len(texts) >= part * _CHUNK_DOCUMENTS:
            yield place, texts
            texts, size = [], 0
    if texts:
        yield place, texts


def _encode(tokenizer: Tokenizer, place: Place, texts: list[str]) -> Encoded:
    dtype, end = token_dtype(tokenizer.vocab_size), [np.array([tokenizer.eos_id])]
    arrays = tokenizer.encode_array(texts)
    ids = np.concatenate([part for array in arrays for part in (array, *end)], dtype=dtype, casting="unsafe")
    ends = np.cumsum([len(array) + 1 for array in arrays])
    return Encoded(place, ids, ends, np.array([len(text.encode()) for text in texts]))


def _encoded(tokenizer: Tokenizer, chunks: Iterable[tuple[Place, list[str]]]) -> Iterator[Encoded]:
    """The chunks in order, tokenised on all cores: the libraries release the GIL."""
    cores, pending = available_cores(), deque[Future[Encoded]]()
    with ThreadPoolExecutor(cores) as pool:
        for place, texts in chunks:
            pending.append(pool.submit(_encode, tokenizer, place, texts))
            if len(pending) > _AHEAD * cores:
                yield pending.popleft().result()
        for future in pending:
            yield future.result()


def _limited(encoded: Iterator[Encoded], left: float) -> Iterator[Encoded]:
    """The documents up to the one that reaches `left` tokens."""
    for place, ids, ends, sizes in encoded:
        n = min(int(ends.searchsorted(left)) + 1, len(ends))
        yield Encoded(place, ids[: ends[n - 1]], ends[:n], sizes[:n])
        left -= ends[n - 1]
        if left <= 0:
            return


def _up_to(encoded: Iterator[Encoded], tokens: int) -> Iterator[Encoded]:
    """The chunks up to the one that reaches so many tokens."""
    for chunk in encoded:
        yield chunk
        tokens -= len(chunk.ids)
        if tokens <= 0:
            return


def _write(
    folder: Path,
    split: str,
    journal: Journal,
    tokenizer: Tokenizer,
    encoded: Iterator[Encoded],
    shard_tokens: int,
) -> None:
    """Write the shards of a split; each is in the journal when it is durable."""
    entries = journal.shards[split]
    for first in encoded:
        chunks = _up_to(itertools.chain([first], encoded), shard_tokens)
        path = folder / f"{split}-{len(entries):05d}.bin"
        entry, journal.places[split] = _write_shard(path, chunks, tokenizer)
        entries.append(entry)
        write_json(folder / JOURNAL, asdict(journal))


def _write_shard(path: Path, chunks: Iterable[Encoded], tokenizer: Tokenizer) -> tuple[ShardEntry, Place]:
    """Write a shard, which has its name when it is complete; returns its entry and the place after it."""
    part, width = path.with_name(path.name + ".part"), token_dtype(tokenizer.vocab_size).itemsize
    tokens, documents, text_bytes, least, largest, place = 0, 0, 0, MAX_VOCAB, 0, (0, 0)
    part.unlink(missing_ok=True)  # a symbolic link would lead elsewhere
    with naming(part), open(part, "wb") as file:
        file.write(bytes(HEADER.size))
        for chunk in chunks:
            file.write(chunk.ids.data)
            tokens += len(chunk.ids)
            documents += len(chunk.ends)
            text_bytes += int(chunk.sizes.sum())
            least, largest = min(least, int(chunk.ids.min())), max(largest, int(chunk.ids.max()))
            place = chunk.place
        file.seek(0)
        file.write(HEADER.pack(MAGIC, VERSION, width, tokens, bytes.fromhex(tokenizer.fingerprint)))
        file.flush()
        os.fsync(file.fileno())
    entry = ShardEntry(path.name, tokens, documents, text_bytes, sha256(part), least, largest)
    os.replace(part, path)
    fsync_path(path.parent)
    return entry, place


def _with_progress(
    encoded: Iterable[Encoded], source: Source, split: str, journal: Journal, max_tokens: int | None
) -> Iterator[Encoded]:
    """The chunks; tokens per second and time left on standard error: a bar on a terminal, else a line a minute."""
    from rich.console import Console
    from rich.progress import Progress

    console, known = Console(stderr=True), source.size_bytes()
    has_cursor = console.file.isatty()  # a notebook forces colours, but cannot redraw a line
    earlier = [entry for entries in journal.shards.values() for entry in entries]
    tokens = before = sum(entry.tokens for entry in earlier)
    size = sum(entry.text_bytes for entry in earlier)
    begun = line = time.perf_counter()
    first = None
    with Progress(console=console, disable=not has_cursor, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        for chunk in encoded:
            yield chunk
            now, tokens, size = time.perf_counter(), tokens + len(chunk.ids), size + int(chunk.sizes.sum())
            if max_tokens:
                share = tokens / max_tokens
            else:  # by files where the bytes of text are not known
                share = size / known if known else chunk.place[0] / (source.parts(split) or 1)
            first = share if first is None else first
            rate = (tokens - before) / max(now - begun, 1e-9)
            said = f"tokenising {source.name}: {tokens:,} tokens, {rate:,.0f} tokens/s"
            bar.update(task, completed=share, description=said)
            if not has_cursor and now - line >= _SECONDS_PER_LINE and share > first:
                left = max(0.0, 1 - share) / (share - first) * (now - begun) / 60
                print(f"{said}, {share:.1%}, about {left:,.0f} min left", file=sys.stderr, flush=True)
                line = now
