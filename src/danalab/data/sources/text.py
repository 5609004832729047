"""Documents of files: `TextSource` reads yours, `StdlibSource` Python's standard library, which is always installed.

.txt and .md (one document), .jsonl, .ndjson and .json (a document per line), .parquet (a document per row), also .gz
and .zst. In `TextSource`, documents of more than 256 KiB are cut at line ends into documents of at most that size, so
that one large file or line can be split.
"""

from __future__ import annotations

import gzip
import io
import itertools
import platform
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import BinaryIO

from danalab.data.formats.shards import reading
from danalab.data.sources.base import TRAIN, VAL, Source
from danalab.data.splits import SPLIT_NAMES, split_name
from danalab.data.tokenizers.base import reject_surrogates
from danalab.errors import UserError, import_extra
from danalab.files import parse_json, walk_files

MAX_DOCUMENT_BYTES = 256 * 1024
_MIN_DOCUMENT_BYTES, _FEW_FILES = 2048, 10
_VALIDATION_BYTES = 1 << 15  # a share of 1% of a small text would be shorter than one sequence
_SMALLER = ((10_000, "bytes"), (100_000, "bpe-512"), (1_000_000, "bpe-1024"))
"""The default tokenizer of a text below so many bytes."""
PLAIN = {".txt", ".md"}
LINES = {".jsonl", ".ndjson", ".json"}
PACKED = {".gz", ".zst"}
SEARCHED = PLAIN | LINES - {".json"} | {".parquet"}
"""Suffixes searched for in folders, where a .json is rarely text."""
TEXT_COLUMN = "text"
_MARK = "\ufeff"  # the byte order mark that some editors write at the start of a file
_KINDS = ".txt, .md, .jsonl, .ndjson, .json, .parquet"
_BLOCK = 1 << 20
_MAX_LINE_BYTES = 1 << 28
_ROWS = 1024
_NOT_READ = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "lib-dynload",
    "__pycache__",
    "encodings",
}


class TextSource(Source):
    """Files or folders of .txt, .md, .jsonl, .ndjson, .json (field `text`) and .parquet (column); also .gz, .zst."""

    name = "text"
    licence = "that of your files"

    def __init__(
        self,
        inputs: Sequence[str | Path],
        val_inputs: Sequence[str | Path] = (),
        text_column: str = TEXT_COLUMN,
    ):
        """Files, or folders that are searched for files of known kinds; `val_inputs` are validation files."""
        self._field = text_column
        self._unread = Counter[str]()  # what is in the folders and is not read, by suffix
        self.files = self._find(inputs, "--input")
        self.val_files = self._find(val_inputs, "--val-input") if val_inputs else self._named_validation()
        both = {file.resolve() for file in self.files} & {file.resolve() for file in self.val_files}
        if both:
            raise UserError(
                f"{min(both)}: given as --input and --val-input; validation text must not be trained on"
            )
        unread = ", ".join(f"{count:,} {kind}" for kind, count in self._unread.most_common())
        self.report = f"read {len(self._sizes):,} file(s)" + (f"; not read: {unread}" if unread else "")
        size = sum(self._sizes)
        self.val_fraction = max(0.01, min(0.1, _VALIDATION_BYTES / max(1, size)))
        self.default_tokenizer = next((name for below, name in _SMALLER if size < below), "bpe-4096")

    @classmethod
    def build(cls, inputs: Sequence[str | Path], val_inputs: Sequence[str | Path]) -> TextSource:
        if not inputs:
            raise UserError("the source 'text' reads your files: give --input PATH...")
        return cls(inputs, val_inputs)

    def _files(self, side: str) -> list[Path]:
        return self.files if side == TRAIN else self.val_files

    def parts(self, side: str) -> int | None:
        return len(self._files(side)) or None

    def iter_part(self, side: str, number: int, skip: int = 0) -> Iterator[str]:
        return itertools.islice(self._pieces(self._files(side)[number]), skip, None)

    def _pieces(self, file: Path) -> Iterator[str]:
        for document in read_documents(file, self._field):
            yield from _pieces([document.encode()], "", self._longest)

    @cached_property
    def _longest(self) -> int:
        """Longest document [bytes]; of a few small files less, so that there are about a hundred to choose from."""
        if self.val_files or len(self.files) >= _FEW_FILES:
            return MAX_DOCUMENT_BYTES
        return min(MAX_DOCUMENT_BYTES, max(_MIN_DOCUMENT_BYTES, sum(self._sizes) // 100))

    @cached_property
    def _sizes(self) -> list[int]:
        return [file.stat().st_size for file in [*self.files, *self.val_files]]

    def size_bytes(self) -> int | None:
        compressed = any(file.suffix in PACKED | {".parquet"} for file in [*self.files, *self.val_files])
        return None if compressed else sum(self._sizes)

    def identity(self) -> str:
        lines = [f"documents of at most {self._longest}"]
        lines += [f"field {self._field}"] if self._field != TEXT_COLUMN else []
        for side in (TRAIN, VAL):
            stats = [(file, file.stat()) for file in self._files(side)]
            lines += [f"{side} {file} {status.st_size} {status.st_mtime_ns}" for file, status in stats]
        return "\n".join(lines)

    def _find(self, inputs: Sequence[str | Path], flag: str) -> list[Path]:
        files: list[Path] = []
        for entry in map(Path, inputs):
            if entry.is_dir():
                below = sorted(walk_files(entry), key=lambda path: path.relative_to(entry).as_posix())
                texts = [path for path in below if kind(path) in SEARCHED]
                others = [kind(path) or "without a suffix" for path in below if kind(path) not in SEARCHED]
                self._unread.update(others)
                if not texts:
                    raise UserError(f"{flag} {entry}: no {_KINDS} (also .gz, .zst) with text in this folder")
                files += texts
            else:
                if not entry.exists():
                    raise UserError(f"{flag} {entry}: no such file or folder, or a link to nowhere")
                if kind(entry) not in SEARCHED | LINES:
                    raise UserError(f"{flag} {entry}: unknown kind; {_KINDS} are read (also .gz, .zst)")
                files.append(entry)
        return list(dict.fromkeys(files))

    def _named_validation(self) -> list[Path]:
        """The files whose names say that they validate (val.txt, valid-00.jsonl), if others say that they train.

        Then no other file is read.
        """
        by_split: dict[str | None, list[Path]] = {}
        for path in self.files:
            name = split_name(path.name.partition(".")[0])
            word = SPLIT_NAMES.get(path.parent.name)
            by_split.setdefault(word or (name.split if name else None), []).append(path)
        train, val = by_split.get("train", []), by_split.get("val", [])
        if not (train and val):
            return []
        self._unread.update(path.name for path in self.files if path not in {*train, *val})
        self.files = train
        return val


class StdlibSource(Source):
    """The standard library's .py files, without tests, tables of `encodings` and generated ones; about 10 MB."""

    name = "stdlib"
    licence = "PSF-2.0"
    ready = True
    val_fraction = 0.02  # about 15 of 700 files; 1% could leave too few for a stable loss

    def __init__(self, root: Path | None = None):
        """`root`: the library's folder; by default the running interpreter's."""
        self.root = root or Path(sysconfig.get_path("stdlib"))

    @cached_property
    def files(self) -> list[Path]:
        """The files, sorted by their path below `root`."""
        named = []
        for path in self.root.rglob("*.py"):
            below = path.relative_to(self.root)
            generated = below.name.startswith("_sysconfigdata") or below.parts[0].startswith("config-")
            if not generated and not _NOT_READ & set(below.parts):
                named.append((below.as_posix(), path))
        return [path for _, path in sorted(named)]

    def iter_documents(self) -> Iterator[str]:
        for path in self.files:
            try:
                yield path.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue  # a few files declare another encoding

    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def identity(self) -> str:
        sizes = [f"{path.relative_to(self.root).as_posix()} {path.stat().st_size}" for path in self.files]
        return "\n".join([f"python {platform.python_version()}", *sizes])


def kind(name: str | PurePath) -> str:
    """The suffix that gives the format, without that of the compression."""
    suffixes = [suffix.lower() for suffix in PurePath(name).suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_documents(file: Path, field: str = TEXT_COLUMN, skip: int = 0) -> Iterator[str]:
    """The documents of one file after the first `skip`, including empty ones; `field` of lines or tables has the text.

    UserError: text that is not UTF-8 (names the byte), a malformed line, table or archive. MissingExtra: .parquet or
    .zst without the library that reads it.
    """
    name = str(file)
    with reading(file) as stream:
        if kind(file) == ".parquet":
            documents = _parquet(stream, name, field)
        elif kind(file) in LINES:
            documents = _documents_of_json(_unpacked(stream, name), name, field)
        else:
            blocks = iter(partial(_unpacked(stream, name).read, _BLOCK), b"")
            documents = (
                piece if at else piece.removeprefix(_MARK)
                for at, piece in enumerate(_pieces(blocks, name, MAX_DOCUMENT_BYTES))
            )
        try:
            yield from itertools.islice(documents, skip, None)
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(f"{name}: damaged or unreadable: {error}") from error


def _unpacked(stream: BinaryIO, name: str) -> BinaryIO | io.BufferedIOBase:
    suffix = PurePath(name).suffix.lower()
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=stream)
    if suffix == ".zst":
        pa = import_extra("pyarrow", f"reading {PurePath(name).name}")
        unpacked = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")
        return io.BufferedReader(unpacked, _BLOCK)
    return stream


def _decoded(text: bytes, name: str, position: int) -> str:
    """UTF-8 text that starts at byte `position` of the uncompressed file."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = position + error.start
        raise UserError(
            f"{name}: not UTF-8 at byte {offset} (0x{text[error.start]:02x}); convert it, e.g. with iconv -t utf-8"
        ) from None


def _pieces(blocks: Iterable[bytes], name: str, limit: int) -> Iterator[str]:
    """Text cut at line ends, so that a piece has at most `limit` bytes."""
    buffer, position = b"", 0
    for block in blocks:
        buffer, start = buffer + block, 0
        while len(buffer) - start > limit:
            end = buffer.rfind(b"\n", start, start + limit) + 1
            if not end:  # no line ends there: at the start of a character
                end = start + limit
                while end > start + limit - 4 and buffer[end] & 0xC0 == 0x80:  # a continuation byte
                    end -= 1
            yield _decoded(buffer[start:end], name, position + start)
            start = end
        buffer, position = buffer[start:], position + start
    if buffer:
        yield _decoded(buffer, name, position)


def _documents_of_json(stream: BinaryIO | io.BufferedIOBase, name: str, field: str) -> Iterator[str]:
    position = 0
    for number, line in enumerate(iter(partial(stream.readline, _MAX_LINE_BYTES + 1), b""), 1):
        if len(line) > _MAX_LINE_BYTES:
            raise UserError(f"{name}: a line of more than {_MAX_LINE_BYTES:,} bytes")
        text = _decoded(line, name, position).lstrip(_MARK)
        position += len(line)
        if not text.strip():
            continue
        where = f"{name}, line {number}"
        document = parse_json(text, where)
        if not isinstance(document, dict) or not isinstance(document.get(field, 0), str | None):
            names = ", ".join(map(str, list(document)[:8])) if isinstance(document, dict) else ""
            what = f'an object with the field "{field}" (a string) is expected'
            there = f"; there are: {names}" if names else ""
            raise UserError(f"{where}: {what}{there}; --text-column names another")
        content = document[field] or ""  # null is an empty document, as in tables
        try:
            reject_surrogates(content)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        yield content


def _parquet(stream: BinaryIO, name: str, field: str) -> Iterator[str]:
    purpose = f"reading {PurePath(name).name}"
    pa, pq = (import_extra(module, purpose) for module in ("pyarrow", "pyarrow.parquet"))
    try:
        with pq.ParquetFile(stream) as table:
            names = table.schema_arrow.names
            if names.count(field) != 1:
                found = f"{names.count(field) or 'no'} column '{field}'; columns: {', '.join(names)}"
                raise UserError(f"{name}: {found}; --text-column names another")
            for batch in table.iter_batches(batch_size=_ROWS, columns=[field]):
                for text in batch.column(field).cast(pa.string()).to_pylist():
                    yield text or ""
    except (UnicodeDecodeError, pa.ArrowException) as error:
        raise UserError(f"{name}: not a readable parquet file: {error}") from error
