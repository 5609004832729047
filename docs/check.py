"""Runs every command and code block of README.md and docs/: `make docs-check`, or `python docs/check.py docs/chat.md`.

`docs/_tooling/blocks.py` describes the comments that change what is run. Exit code 1 where a block fails.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from _tooling.blocks import blocks, continued  # noqa: E402
from _tooling.run_page import run_page  # noqa: E402


def pages() -> list[Path]:
    """README and all pages that are not generated."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [
        ROOT / "README.md",
        *(page for page in found if "reference" not in page.relative_to(ROOT / "docs").parts),
    ]


def check(page: Path, folder: Path, limit_seconds: float) -> list[str]:
    """Run a page in `folder`/NAME, in a process of its own; returns its faults, none where it passed.

    A page that continues another one begins with a copy of the folder that the other left.
    """
    own, first = folder / _name(page), continued(page)
    if first:
        if not (folder / _name(first)).is_dir() and (faults := check(first, folder, limit_seconds)):
            return [f"{first.name}, which this page continues, failed: {faults[0]}"]
        shutil.copytree(folder / _name(first), own, symlinks=True)
    words = [
        sys.executable,
        __file__,
        "--run",
        str(page),
        "--folder",
        str(own),
        "--limit",
        f"{limit_seconds:g}",
    ]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    if done.returncode:
        return [f"the run of the page ended with exit code {done.returncode}: {done.stderr[-2000:]}"]
    results = json.loads(done.stdout.strip().splitlines()[-1])
    return [f"line {line}: {fault}" for line, fault in results if fault]


def _name(page: Path) -> str:
    return "-".join(page.parts[-2:])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="default: all")
    parser.add_argument("--limit", type=float, default=3600, help="longest time of a block [s]")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.run is not None:
        print("\n" + json.dumps(run_page(flags.run, flags.folder, flags.limit)))
        return 0
    chosen, failed = [page.resolve() for page in flags.pages] or pages(), 0
    with tempfile.TemporaryDirectory(prefix="docs-check-") as folder:
        for page in chosen:
            start = time.monotonic()
            faults = check(page, Path(folder), flags.limit)
            failed += bool(faults)
            state = "FAILED" if faults else "passed"
            print(f"{state}  {page.relative_to(ROOT)}: {time.monotonic() - start:.0f} s", flush=True)
            for fault in faults:
                print(f"        {fault}", flush=True)
    for action in ("not run", "instead"):
        listed = [
            block for page in chosen for block in blocks(page) if block.directive.startswith(f"{action}: ")
        ]
        print(f"\n{len(listed)} blocks are {'not run' if action == 'not run' else 'run as smaller cases'}:")
        for block in listed:
            print(f"  {block.page.relative_to(ROOT)}:{block.line} {block.reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
