"""What the result of a page depends on: files that every page shares, and those that its blocks read."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ("constraints.txt", *(f"docs/_tooling/{name}.py" for name in ("blocks", "code_used", "run_page")))
PYTHONPATH = os.pathsep.join(str(ROOT / folder) for folder in ("src", "docs/_tooling/recorder"))


def environment(used: Path) -> dict[str, str]:
    """Of a process that imports this repository's danalab and notes in the file `used` what it reads of `ROOT`."""
    return {**os.environ, "PYTHONPATH": PYTHONPATH, "DOCS_CHECK_USED": str(used), "DOCS_CHECK_ROOT": str(ROOT)}


def files(used: Path, page: str) -> list[str]:
    """The files noted in `used`, and those that the text of a page names, whose readers may be no Python; sorted."""
    noted = set(used.read_text(encoding="utf-8").splitlines()) if used.is_file() else set()
    folders = (ROOT / name for name in ("bench", "examples", "scripts"))
    candidates = (str(file.relative_to(ROOT)) for folder in folders for file in folder.rglob("*") if file.is_file())
    return sorted(noted | {name for name in candidates if name in page})


def fingerprint(page: bytes, names: Iterable[str]) -> str:
    """Changes with the text of a page, the shared files and the named ones, which may be missing."""
    total = hashlib.sha256(page)
    for name in (*SHARED, *names):
        file = ROOT / name
        total.update(f"\n{name} ".encode() + (hashlib.sha256(file.read_bytes()).digest() if file.is_file() else b""))
    return total.hexdigest()
