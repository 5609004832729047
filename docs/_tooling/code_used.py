"""What the result of a page depends on: files that all pages share, and the modules that its blocks imported."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ("bench", "docs/_tooling", "examples", "scripts", "src")
PYTHONPATH = os.pathsep.join(str(ROOT / folder) for folder in ("src", "docs/_tooling/recorder"))


def environment(used: Path) -> dict[str, str]:
    """Of a process that imports this repository's danalab and notes its modules in the file `used`."""
    return {**os.environ, "PYTHONPATH": PYTHONPATH, "DOCS_CHECK_USED": str(used)}


def modules(used: Path) -> list[str]:
    """The modules noted in a file, sorted."""
    return sorted(set(used.read_text(encoding="utf-8").split())) if used.is_file() else []


@dataclass(frozen=True)
class Code:
    """The code at one time."""

    shared: str
    """Changes with each file that any page may use: scripts, results, and what in `src` is no Python."""
    modules: dict[str, str]
    """Changes of each Python file in `src`, by module; a stub counts as its module."""

    @classmethod
    def now(cls) -> "Code":
        shared, modules = hashlib.sha256((ROOT / "constraints.txt").read_bytes()), {}
        for file in sorted(file for folder in SHARED for file in (ROOT / folder).rglob("*") if _is_source(file)):
            path = file.relative_to(ROOT)
            if path.parts[0] == "src" and file.suffix in (".py", ".pyi"):
                name = ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")
                modules[name] = modules.get(name, "") + hashlib.sha256(file.read_bytes()).hexdigest()
            else:
                shared.update(f"{path}\n".encode() + file.read_bytes())
        return cls(shared.hexdigest(), modules)

    def fingerprint(self, page: bytes, names: Iterable[str]) -> str:
        """Changes with the text of a page, the shared files and the named modules."""
        parts = [self.shared, *(f"{name} {self.modules.get(name)}" for name in names)]
        return hashlib.sha256(page + "\n".join(parts).encode()).hexdigest()


def _is_source(file: Path) -> bool:
    return file.is_file() and file.suffix != ".pyc" and not any(part.endswith(".egg-info") for part in file.parts)
