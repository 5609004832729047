"""Python's standard library as a corpus: always installed, no network needed."""

import platform
import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from danalab.data.sources.base import Source

_NOT_READ = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib-dynload", "__pycache__", "encodings"}


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
        found = []
        for path in self.root.rglob("*.py"):
            below = path.relative_to(self.root)
            generated = below.name.startswith("_sysconfigdata") or below.parts[0].startswith("config-")
            if not generated and not _NOT_READ & set(below.parts):
                found.append((below.as_posix(), path))
        return [path for _, path in sorted(found)]

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
