"""From a source to a data set: documents -> split -> ids on all cores -> shards -> manifest.

    prepare("stdlib", "bpe-4096", "datasets/stdlib-bpe-4096")
    prepare("text", "gpt2", "datasets/mine", inputs=["corpus/"])
    prepare("fineweb-10bt", max_tokens=1_000_000_000)

After a kill it resumes from the journal and produces the same bytes.
"""

import contextlib
import fcntl
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

from danalab.data.formats.shards import MANIFEST, Manifest
from danalab.data.preparation.holdout import SplitDocument, SplitRule, draw, split_documents
from danalab.data.preparation.shard_writer import JOURNAL, DatasetWriter, Journal
from danalab.data.preparation.workers import Chunk, encode_in_order
from danalab.data.sources import TRAIN, Source, SourcePosition, make_source
from danalab.data.tokenizers import BpeTokenizer, load_tokenizer, requested_size, tokenizer_path, train_bpe
from danalab.data.tokenizers.bpe import DECOMPOSED
from danalab.errors import UserError
from danalab.files import read_state
from danalab.hardware import available_cores

SHARD_TOKENS = 100_000_000
MAX_WORKERS = 1024
_CHUNK_CHARACTERS = (
    250_000  # large enough to hide the pipe's cost, small enough that all cores finish together
)
_CHUNK_DOCUMENTS = 1024
_SMALL = 60_000_000  # smaller texts are not worth starting processes [bytes]
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
    val_documents: int | None = None,
    max_documents: int | None = None,
    max_tokens: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    workers: int | None = None,
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
        val_documents: number of documents that validate instead of a share: the first ones and their copies.
        max_documents: maximum number of documents (of each split, if the source has validation files).
        max_tokens: training ends after the document that reaches this many tokens; so does validation, if the
            source has its own files for it.
        shard_tokens: a shard ends after the chunk of documents (about 250 kB of text) that reaches this size.
        workers: number of threads (below 60 MB of text) or processes that tokenise; by default one per core.
        progress: show progress and a summary on standard error.
    Raises:
        UserError: bad source, tokenizer, text or settings, a folder with other content, or an unreachable hub.
    """
    if isinstance(source, str):
        source = make_source(source, inputs, val_inputs)
    if val_fraction is not None and val_documents is not None:
        raise UserError("--val-fraction and --val-documents: give only one of them")
    first = source.val_documents if val_documents is None and val_fraction is None else val_documents
    rule = SplitRule(source.val_fraction if val_fraction is None else val_fraction, first, max_documents)
    for flag, value in (("--shard-tokens", shard_tokens), ("--max-tokens", max_tokens)):
        if value is not None and value < 1:
            raise UserError(f"{flag} is {value}; it must be at least 1")
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise UserError(f"--workers is {workers}; it must be between 1 and {MAX_WORKERS}")
    if max_tokens is None and max_documents is None:
        max_tokens = source.default_max_tokens
    path = tokenizer_path(tokenizer or source.default_tokenizer)
    tokenizer = str(tokenizer or source.default_tokenizer)
    saved = load_tokenizer(path) if path else None
    chosen = saved or source.make_tokenizer(tokenizer)
    if isinstance(chosen, BpeTokenizer):
        chosen.require_lossless(DECOMPOSED)
    folder = Path(out) if out else source.dataset_folder(tokenizer, saved)
    request = _request(source, chosen.fingerprint if chosen else tokenizer, rule, max_tokens, shard_tokens)

    if (folder / MANIFEST).is_file():
        return _already(folder, request)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if (folder / MANIFEST).is_file():
            return _already(folder, request)
        journal = _begin(folder, request)
        pinned = source.pin(journal.origin)
        if pinned != journal.origin:
            journal.origin = pinned
            journal.write(folder)
        begun = time.perf_counter()
        if chosen is None and not (folder / "tokenizer.json").is_file():
            chosen = train_bpe(_sample(source, rule), requested_size(tokenizer), tokenizer)
        if chosen is None:
            chosen = load_tokenizer(folder)
        else:
            chosen.save(folder)
        size = source.size_bytes()
        with (
            contextlib.closing(
                DatasetWriter(folder, chosen, journal, shard_tokens, max_tokens, source)
            ) as writing,
            progress_bar(f"tokenising {source.name}", shown=progress) as show,
        ):
            documents = split_documents(source, rule, journal.place, writing.counts, writing.enough)
            cores, large = workers or available_cores(), size is None or size >= _SMALL
            results = encode_in_order(chosen, folder, _chunks(documents), cores, processes=large)
            with contextlib.closing(results):
                for position, result in results if not writing.complete else ():
                    writing.add(position, result)
                    tokens = writing.total("tokens")
                    if max_tokens is not None:
                        share = tokens / max_tokens
                    elif size is not None:
                        share = writing.total("text_bytes") / max(size, 1)
                    else:  # compressed files
                        share = position.part / (source.parts(position.side) or 1)
                    show(share, tokens)
                    if writing.complete:
                        break
            made = writing.finish({"val_fraction": rule.fraction, "val_documents": rule.first, **pinned})
        made.write(folder)
        (folder / JOURNAL).unlink()
    if progress:
        seconds = time.perf_counter() - begun
        totals = {split: sum(entry.tokens for entry in entries) for split, entries in made.splits.items()}
        counts = " + ".join(f"{count:,} {split}" for split, count in totals.items())
        words = (
            f"{source.name} with {made.tokenizer.name}: {counts} tokens of {sum(writing.counts):,} documents"
        )
        print(f"prepared {words} in {seconds:.1f} s: {folder}", file=sys.stderr)
        if isinstance(chosen, BpeTokenizer) and chosen.decode(chosen.encode(DECOMPOSED)) != DECOMPOSED:
            print("the tokenizer normalizes text: e and an accent are the same as é", file=sys.stderr)
        if report := source.reading_report():
            print(report, file=sys.stderr)
    return folder


def _request(
    source: Source, tokenizer: str, rule: SplitRule, max_tokens: int | None, shard_tokens: int
) -> str:
    limits = [*astuple(rule), max_tokens, shard_tokens, _CHUNK_CHARACTERS, _CHUNK_DOCUMENTS]
    what = [source.name, source.identity(), tokenizer, *limits, 2]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One preparation of a folder at a time: several ranks may request the same data set together."""
    if (folder / ".lock").is_symlink():  # opening it would write outside of the folder
        raise UserError(f"{folder / '.lock'}: a symbolic link; delete it")
    with open(folder / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
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
        if any(state.finished for state in journal.splits.values()):
            raise UserError(
                f"{folder}: an unfinished data set of other text or other settings; "
                "use the same flags as before, choose another --out, or delete the folder"
            )
        for path in folder.iterdir():
            if path.name.endswith((".bin", ".bin.part")) or path.name.startswith("tokenizer"):
                path.unlink()
    elif others := sorted(path.name for path in folder.iterdir() if path.name != ".lock"):
        raise UserError(f"{folder}: not empty ({others[0]}) and not a data set; choose another --out")
    journal = Journal(request)
    journal.write(folder)
    return journal


def _sample(source: Source, rule: SplitRule) -> Iterator[str]:
    """About 3 MB of training text, sampled over the corpus by a hash: enough to learn merges in a second."""
    size = source.size_bytes()
    share = 1.0 if size is None else _SAMPLE_BYTES / max(size, 1)
    left = _SAMPLE_BYTES
    for document in split_documents(source, rule):
        if document.split == TRAIN and draw(document.text, "danalab sample 1") < share:
            yield document.text[: min(left, _SAMPLE_DOCUMENT)]
            left -= min(len(document.text), _SAMPLE_DOCUMENT)
            if left <= 0:
                return


def _chunks(documents: Iterator[SplitDocument]) -> Iterator[tuple[SourcePosition, Chunk]]:
    """Chunks of documents with the position after them. A chunk lies on one side of the source."""
    chunk: list[tuple[str, str]] = []
    size, end = 0, None
    for split, text, position in documents:
        if end is not None and chunk and end.side != position.side:
            yield end, chunk
            chunk, size = [], 0
        chunk.append((split, text))
        size += len(text)
        end = position
        if size >= _CHUNK_CHARACTERS or len(chunk) >= _CHUNK_DOCUMENTS:
            yield end, chunk
            chunk, size = [], 0
    if chunk and end is not None:
        yield end, chunk


@contextmanager
def progress_bar(label: str, *, shown: bool) -> Iterator[Callable[[float, int], None]]:
    """Share of the work, tokens per second and time left on standard error: a bar on a terminal, else a line a minute.

    Yields a function that takes the share that is done and the tokens so far.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    has_cursor = console.file.isatty()  # a notebook forces colours, but cannot redraw a line
    begun = line = time.perf_counter()
    before: tuple[float, int] | None = None

    with Progress(console=console, disable=not (shown and has_cursor), transient=True) as bar:
        task = bar.add_task(label, total=1.0)

        def show(share: float, tokens: int) -> None:
            nonlocal begun, line, before
            now = time.perf_counter()
            if before is None:  # tokens of an earlier attempt do not count for this one's speed
                before, begun = (share, tokens), now
                return
            seconds = max(now - begun, 1e-9)
            said = f"{label}: {tokens:,} tokens, {(tokens - before[1]) / seconds:,.0f} tokens/s"
            bar.update(task, completed=share, description=said)
            if shown and not has_cursor and now - line >= _SECONDS_PER_LINE:
                line, gained = now, share - before[0]
                left = f", about {(1 - share) / gained * seconds / 60:,.0f} min left" if gained > 0 else ""
                print(f"{said}, {share:.1%}{left}", file=sys.stderr, flush=True)

        yield show
