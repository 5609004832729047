"""Runs every command and code block of README.md and docs/: `make docs-check`.

Results are kept in build/docs-check, one file per page; a page that passed is run again when its text, a file of this
repository that its blocks read, or the code of this check changes.
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
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from _tooling import code_used  # noqa: E402
from _tooling.blocks import blocks, continued  # noqa: E402
from _tooling.run_page import run_page  # noqa: E402

RESULTS = ROOT / "build" / "docs-check"


def pages() -> list[Path]:
    """README and all pages that are not generated."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in found if "reference" not in page.relative_to(ROOT / "docs").parts)]


def check(page: Path, *, again: bool, limit_seconds: float) -> dict[str, Any]:
    """The result of a page: kept, or of a run now in a process of its own.

    A page that another one continues leaves its folder beside its result.
    """
    first = continued(page)
    before = check(first, again=False, limit_seconds=limit_seconds) if first else None
    before_fingerprint = before["fingerprint"] if before else ""
    text = page.read_bytes() + before_fingerprint.encode()
    file, left = RESULTS / f"{_name(page)}.json", RESULTS / _name(page)
    is_continued = page in {continued(other) for other in pages()}
    if file.is_file() and not again and (left.is_dir() or not is_continued):
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["passed"] and kept["fingerprint"] == code_used.fingerprint(text, kept.get("files", ())):
            return {**kept, "kept": True}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="docs-check-") as temporary:
        folder, used = Path(temporary) / "page", Path(temporary) / "used"
        results, fault = [], f"{first.name if first else ''}, which this page continues, failed"
        if before is None or before["passed"]:
            if first:
                shutil.copytree(RESULTS / _name(first), folder, symlinks=True)
            results, fault = _run_apart(page, folder, used, limit_seconds)
        files = code_used.files(used, page.read_text(encoding="utf-8"))
        passed = not fault and not any(result["fault"] for result in results)
        RESULTS.mkdir(parents=True, exist_ok=True)
        if passed and is_continued:
            shutil.rmtree(left, ignore_errors=True)
            shutil.move(folder, left)
    seconds = round(time.monotonic() - start, 1)
    made = {"fingerprint": code_used.fingerprint(text, files), "passed": passed, "fault": fault, "seconds": seconds}
    made |= {"blocks": results, "files": files}
    file.write_text(json.dumps(made, indent=1), encoding="utf-8")
    return {**made, "kept": False}


def _run_apart(page: Path, folder: Path, used: Path, limit_seconds: float) -> tuple[list[dict[str, Any]], str]:
    """The results of a page's blocks, run in another process, and how that process failed, if it did."""
    words = [sys.executable, __file__, "--run", str(page), "--folder", str(folder), "--limit", f"{limit_seconds:g}"]
    done = subprocess.run(words, env=code_used.environment(used), capture_output=True, text=True, errors="replace")
    if done.returncode:
        return [], f"the run of the page ended with exit code {done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1]), ""


def _name(page: Path) -> str:
    return "-".join(page.relative_to(ROOT).parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="default: all")
    parser.add_argument("--again", action="store_true", help="also the pages that passed")
    parser.add_argument("--limit", type=float, default=3600, help="longest time of a block [s]")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.run is not None:
        print("\n" + json.dumps(run_page(flags.run, flags.folder, flags.limit)))
        return 0
    failed, skipped, replaced = 0, [], []
    for page in [page.resolve() for page in flags.pages] or pages():
        result = check(page, again=flags.again, limit_seconds=flags.limit)
        failed += not result["passed"]
        ran = sum(each["action"] in ("shell", "python", "excerpt", "file") for each in result["blocks"])
        state = "passed" if result["passed"] else "FAILED"
        when = "earlier" if result["kept"] else f"{result['seconds']:.0f} s"
        print(f"{state}  {page.relative_to(ROOT)}: {ran} blocks, {when}", flush=True)
        for each in result["blocks"]:
            if each["fault"]:
                print(f"        line {each['line']}: {each['fault']}")
        if result["fault"]:
            print(f"        {result['fault']}")
        skipped += [block for block in blocks(page) if block.action == "not run"]
        replaced += [block for block in blocks(page) if block.is_replaced]
    print(f"\n{len(skipped)} blocks are not run:")
    for block in skipped:
        print(f"  {block.page.relative_to(ROOT)}:{block.line}: {block.reason}")
    print(f"\n{len(replaced)} blocks are run as smaller cases:")
    for block in replaced:
        print(f"  {block.page.relative_to(ROOT)}:{block.line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
