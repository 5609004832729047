"""Your own text: files or folders of .txt, .md, .jsonl (field `text`) and .parquet (column `text`), also .gz and .zst.

A line of .jsonl and a row of .parquet is a document. A .txt or .md file is one, unless it is larger than 256 KiB: then
it is cut at line ends into documents of at most that size, so that one large file, too, gives a validation split.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from danalab.data.sources.base import Source
from danalab.data.tokenizers.base import refuse_surrogates
from danalab.errors import MissingExtra, UserError

MAX_DOCUMENT_BYTES = 256 * 1024
_PLAIN = {".txt", ".md"}
_PACKED = {".gz", ".zst"}
_KNOWN = _PLAIN | {".jsonl", ".parquet"}
_BLOCK = 1 << 20


class TextSource(Source):
    """Documents of files. `val_inputs` are the source's own validation files."""

    name = "text"
    licence = "that of your files"
    summary = "any .txt, .md, .jsonl, .parquet (also .gz, .zst): --input PATH..."

    def __init__(self, inputs: Sequence[str | Path], val_inputs: Sequence[str | Path] = ()):
        """Files, or folders that are searched for files of the known kinds.

        Raises:
            UserError: a path that is absent or of an unknown kind, nothing found, or a file on both sides.
        """
        self.files = _find(inputs, "--input")
        self.val_files = _find(val_inputs, "--val-input") if val_inputs else []
        both = {file.resolve() for file in self.files} & {file.resolve() for file in self.val_files}
        if both:
            raise UserError(f"{min(both)}: given as --input and as --val-input; validation text must not be trained on")

    @classmethod
    def build(cls, inputs: Sequence[str | Path], val_inputs: Sequence[str | Path]) -> TextSource:
        if not inputs:
            raise UserError("the source 'text' reads your files: give --input PATH...")
        return cls(inputs, val_inputs)

    def iter_documents(self) -> Iterator[str]:
        for file in self.files:
            yield from read_documents(file)

    def iter_validation(self) -> Iterator[str] | None:
        if not self.val_files:
            return None
        return (document for file in self.val_files for document in read_documents(file))

    @cached_property
    def _sizes(self) -> list[int]:
        return [file.stat().st_size for file in [*self.files, *self.val_files]]

    def size_bytes(self) -> int | None:
        compressed = any(file.suffix in _PACKED | {".parquet"} for file in [*self.files, *self.val_files])
        return None if compressed else sum(self._sizes)

    def identity(self) -> str:
        lines = [f"documents of at most {MAX_DOCUMENT_BYTES}"]
        for side, files in (("train", self.files), ("val", self.val_files)):
            for file in files:
                status = file.stat()
                lines.append(f"{side} {file} {status.st_size} {status.st_mtime_ns}")
        return "\n".join(lines)


def _find(inputs: Sequence[str | Path], flag: str) -> list[Path]:
    found: list[Path] = []
    for entry in map(Path, inputs):
        if entry.is_dir():
            below = [path for path in entry.rglob("*") if path.is_file() and _kind(path) in _KNOWN]
            below = [path for path in below if not any(p.startswith(".") for p in path.relative_to(entry).parts)]
            if not below:
                raise UserError(f"{flag} {entry}: no .txt, .md, .jsonl, .parquet (also .gz, .zst) in this folder")
            found += sorted(below, key=lambda path: path.relative_to(entry).as_posix())
        elif not entry.exists():
            raise UserError(f"{flag} {entry}: no such file or folder")
        elif _kind(entry) not in _KNOWN:
            raise UserError(f"{flag} {entry}: unknown kind; .txt, .md, .jsonl and .parquet are read (also .gz, .zst)")
        else:
            found.append(entry)
    return list(dict.fromkeys(found))


def _kind(path: Path) -> str:
    """The suffix that says what is in the file, compression aside."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_documents(file: Path) -> Iterator[str]:
    """The documents of one file; empty ones are left out.

    Raises:
        UserError: text that is not UTF-8 (names the byte), a malformed line, row or archive.
        MissingExtra: .parquet or .zst without the library that reads it.
    """
    kind = _kind(file)
    if kind == ".parquet":
        yield from _parquet(file)
        return
    read = _lines_of_json if kind == ".jsonl" else _pieces
    try:
        yield from read(_blocks(file), file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{file}: damaged archive: {error}") from error


def _blocks(file: Path) -> Iterator[bytes]:
    """The unpacked bytes of a file, some at a time."""
    suffix = file.suffix.lower()
    if suffix == ".zst":
        yield from _zstd_blocks(file)
        return
    with gzip.open(file) if suffix == ".gz" else open(file, "rb") as stream:
        while block := stream.read(_BLOCK):
            yield block


def _zstd_blocks(file: Path) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtra("zstandard", "data", f"reading {file.name}") from error
    unpacker = zstandard.ZstdDecompressor()
    frame = unpacker.decompressobj()
    try:
        with open(file, "rb") as stream:
            while packed := stream.read(_BLOCK):
                while packed:
                    if frame.eof:  # archives may be several frames, one after the other
                        frame = unpacker.decompressobj()
                    yield frame.decompress(packed)
                    packed = frame.unused_data if frame.eof else b""
    except zstandard.ZstdError as error:
        raise UserError(f"{file}: damaged archive: {error}") from error
    if not frame.eof:  # the library's own stream would end here as if all were well
        raise UserError(f"{file}: damaged archive: it ends in the middle of a frame")


def _decoded(text: bytes, file: Path, position: int) -> str:
    """UTF-8 text that starts at byte `position` of the (unpacked) file."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        place = position + error.start
        raise UserError(
            f"{file}: not UTF-8 at byte {place} (0x{text[error.start]:02x}); convert it, e.g. with iconv -t utf-8"
        ) from None


def _pieces(blocks: Iterable[bytes], file: Path) -> Iterator[str]:
    buffer, position, limit = b"", 0, MAX_DOCUMENT_BYTES
    for block in blocks:
        buffer += block
        while len(buffer) > limit:
            end = _end_of_piece(buffer, limit)
            yield _decoded(buffer[:end], file, position)
            buffer, position = buffer[end:], position + end
    if buffer:
        yield _decoded(buffer, file, position)


def _end_of_piece(buffer: bytes, limit: int) -> int:
    """Behind the last line end within `limit` bytes; without one, where a character begins."""
    end = buffer.rfind(b"\n", 0, limit) + 1
    if end:
        return end
    end = limit
    while end > limit - 4 and buffer[end] & 0xC0 == 0x80:  # a continuation byte
        end -= 1
    return end


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []
    for block in blocks:
        first, *others = block.split(b"\n")
        parts.append(first)
        for other in others:
            yield b"".join(parts) + b"\n"
            parts = [other]
    yield b"".join(parts)


def _lines_of_json(blocks: Iterable[bytes], file: Path) -> Iterator[str]:
    position = 0
    for number, line in enumerate(_lines(blocks), 1):
        text = _decoded(line, file, position)
        position += len(line)
        if not text.strip():
            continue
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{file}, line {number}: not valid JSON: {error.msg} (column {error.colno})") from None
        content = document.get("text") if isinstance(document, dict) else None
        if not isinstance(content, str):
            raise UserError(f'{file}, line {number}: an object with the field "text" (a string) is expected')
        try:
            refuse_surrogates(content)
        except UserError as error:
            raise UserError(f"{file}, line {number}: {error}") from None
        if content:
            yield content


def _parquet(file: Path) -> Iterator[str]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", f"reading {file.name}") from error
    try:
        with pq.ParquetFile(file) as table:
            if "text" not in table.schema_arrow.names:
                raise UserError(f"{file}: no column 'text'; columns: {', '.join(table.schema_arrow.names)}")
            if table.schema_arrow.field("text").type not in (pa.string(), pa.large_string()):
                raise UserError(f"{file}: the column 'text' is {table.schema_arrow.field('text').type}, not text")
            for batch in table.iter_batches(batch_size=1024, columns=["text"]):
                yield from (document for document in batch.column(0).to_pylist() if document)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not a readable parquet file: {error}") from error
