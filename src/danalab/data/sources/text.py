"""Local text: your own files, and Python's standard library, which is always installed."""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from danalab.data.sources.base import TRAIN, VAL, Source, walk
from danalab.data.sources.formats import KNOWN, MAX_DOCUMENT_BYTES, PACKED, kind, read_documents
from danalab.errors import UserError

_NOT_READ = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib-dynload", "__pycache__", "encodings"}


class TextSource(Source):
    """Files or folders of .txt, .md, .jsonl (field `text`) and .parquet (column `text`); also .gz, .zst."""

    name = "text"
    licence = "that of your files"
    summary = "any .txt, .md, .jsonl, .parquet (also .gz, .zst): --input PATH..."

    def __init__(self, inputs: Sequence[str | Path], val_inputs: Sequence[str | Path] = ()):
        """Files, or folders that are searched for files of known kinds; `val_inputs` are validation files.

        Raises:
            UserError: a path is absent or of an unknown kind, nothing was found, or a file is on both sides.
        """
        self.files = _find(inputs, "--input")
        self.val_files = _find(val_inputs, "--val-input") if val_inputs else []
        both = {file.resolve() for file in self.files} & {file.resolve() for file in self.val_files}
        if both:
            raise UserError(f"{min(both)}: given as --input and --val-input; validation text must not be trained on")

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
        return read_documents(self._files(side)[number], skip=skip)

    def iter_documents(self) -> Iterator[str]:
        return (text for _, text in walk(self, TRAIN, None))

    def iter_validation(self) -> Iterator[str] | None:
        return (text for _, text in walk(self, VAL, None)) if self.val_files else None

    @cached_property
    def _sizes(self) -> list[int]:
        return [file.stat().st_size for file in [*self.files, *self.val_files]]

    def part_bytes(self, side: str) -> list[int]:
        return self._sizes[: len(self.files)] if side == TRAIN else self._sizes[len(self.files) :]

    def size_bytes(self) -> int | None:
        compressed = any(file.suffix in PACKED | {".parquet"} for file in [*self.files, *self.val_files])
        return None if compressed else sum(self._sizes)

    def identity(self) -> str:
        lines = [f"documents of at most {MAX_DOCUMENT_BYTES}"]
        for side, files in (("train", self.files), ("val", self.val_files)):
            for file in files:
                status = file.stat()
                lines.append(f"{side} {file} {status.st_size} {status.st_mtime_ns}")
        return "\n".join(lines)


def _find(inputs: Sequence[str | Path], flag: str) -> list[Path]:
    files: list[Path] = []
    for entry in map(Path, inputs):
        if entry.is_dir():
            below = [path for path in entry.rglob("*") if kind(path) in KNOWN and not path.is_dir()]
            below = [path for path in below if not any(p.startswith(".") for p in path.relative_to(entry).parts)]
            if not below:
                raise UserError(f"{flag} {entry}: no .txt, .md, .jsonl, .parquet (also .gz, .zst) in this folder")
            files += sorted(below, key=lambda path: path.relative_to(entry).as_posix())
        else:
            if not entry.exists() and not entry.is_symlink():
                raise UserError(f"{flag} {entry}: no such file or folder")
            if kind(entry) not in KNOWN:
                raise UserError(
                    f"{flag} {entry}: unknown kind; .txt, .md, .jsonl and .parquet are read (also .gz, .zst)"
                )
            files.append(entry)
    for path in files:
        if not path.exists():
            raise UserError(f"{flag} {path}: a dangling symbolic link (to {path.readlink()})")
    return list(dict.fromkeys(files))


class StdlibSource(Source):
    """The .py files of the interpreter's standard library, docstrings and code; about 10 MB, one document a file.

    Without tests, the tables of `encodings`, generated files, and files that are not UTF-8.
    """

    name = "stdlib"
    licence = "PSF-2.0"
    summary = "Python's standard library as installed: docstrings and code"
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
