"""`danalab bench gpu`: sections in the order of their worth, each in a process that is ended at its time limit.

A section that fails, hangs or loses the device costs the others nothing. One for which too little time is left is
dropped, and smaller ones after it take its place. No torch in this process.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from danalab.files import read_json
from danalab_bench import environment
from danalab_bench.timing import Say


class Limits(NamedTuple):
    """Seconds of a section."""

    most: float
    least: float
    """With less left it is not begun: its first row would not be ready."""


SECTIONS = {
    "tests": Limits(200, 60),
    "optim": Limits(80, 25),
    "train": Limits(110, 45),
    "decode": Limits(40, 20),
    "checkpoint": Limits(40, 20),
    "resonance": Limits(40, 20),
}
"""The most valuable first; what they are: `danalab_bench.gpu_sections`."""
PROCESS = ("-m", "danalab_bench.gpu_sections")
"""Arguments of Python for a section's process, before its own."""
GRACE_SECONDS = 5.0
"""Time that a process has to end after it was asked to."""


def measure(
    sections: Sequence[str], seconds: float, dry: bool, say: Say, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run sections within so many seconds; `keep` takes the values so far after each section.

    Args:
        dry: the same code at tiny sizes, on a CPU that says that it is a GPU.
    """
    end = time.monotonic() + seconds
    result: dict[str, Any] = {"benchmark": "gpu", "dry_run": dry, "machine": None, "sections": {}}
    for name in sections:
        left, start = end - time.monotonic() - GRACE_SECONDS, time.monotonic()
        if left < SECTIONS[name].least:
            result["sections"][name] = {"ended": f"dropped: {max(0, left):.0f} s were left", "seconds": 0.0, "rows": []}
            say(f"{name}: {result['sections'][name]['ended']}")
            continue
        limit = left if dry else min(left, SECTIONS[name].most)
        say(f"{name} (at most {limit:.0f} s)")
        with tempfile.TemporaryDirectory(prefix="danalab-bench-") as folder:
            file = Path(folder) / "rows.json"
            ended = run([name, str(file), "dry" if dry else "full", str(time.time() + limit)], limit, say)
            told = read_json(file) if file.exists() else {"machine": None, "rows": []}
        result["machine"] = told["machine"] or result["machine"]
        taken = round(time.monotonic() - start, 1)
        result["sections"][name] = {"ended": ended, "seconds": taken, "rows": told["rows"]}
        say(f"  {ended}, {len(told['rows'])} rows in {taken:.0f} s")
        keep(result)
    return result


def failures(result: dict[str, Any]) -> list[str]:
    """Sections that were begun and did not end by themselves, and tasks that failed."""
    parts = result["sections"].items()
    bad = [f"{name}: {part['ended']}" for name, part in parts if not part["ended"].startswith(("done", "dropped"))]
    return bad + [
        f"{name}, {row['task']}: {row['error']}" for name, part in parts for row in part["rows"] if "error" in row
    ]


def run(arguments: list[str], seconds: float, say: Say) -> str:
    """Run a section's process; returns how it ended."""
    command = [sys.executable, *PROCESS, *arguments]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environment()
        )
        try:
            code = process.wait(seconds)
            ended = "done" if code == 0 else f"failed with exit code {code}"
        except subprocess.TimeoutExpired:
            ended = f"cut off after {seconds:.0f} s"
        finally:
            _end(process)
        output.seek(0)
        for text in output:
            say(text.rstrip())
    return ended


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, and what it started (compilers)."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
