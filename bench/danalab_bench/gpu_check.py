"""`danalab bench gpu`: runs the sections one after the other, each in a process that is ended at its time limit.

A section that fails, hangs or loses the device costs the others nothing. No torch in this process.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from danalab.files import read_json
from danalab_bench import environment
from danalab_bench.timing import Say

PROCESS = ("-m", "danalab_bench.gpu_sections")
"""Arguments of Python for a section's process, before its own."""
GRACE_SECONDS = 5.0
"""Time that a process has to end after it was asked to."""


def measure(
    sections: Sequence[tuple[str, float]],
    device: str,
    quick: bool,
    say: Say,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Measure sections, each with its time limit [s]; `keep` takes the values so far after each section."""
    result: dict[str, Any] = {"benchmark": "gpu", "device": device, "quick": quick, "machine": None, "sections": {}}
    for name, seconds in sections:
        say(f"{name} (at most {seconds:.0f} s)")
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="danalab-bench-") as folder:
            file = Path(folder) / "rows.json"
            ended = _run([name, str(file), device, "quick" if quick else "full"], seconds, say)
            told = read_json(file) if file.exists() else {"machine": None, "rows": []}
        result["machine"] = told["machine"] or result["machine"]
        taken = round(time.monotonic() - start, 1)
        result["sections"][name] = {"ended": ended, "seconds": taken, "rows": told["rows"]}
        say(f"  {ended}, {len(told['rows'])} rows in {taken:.0f} s")
        keep(result)
    return result


def failures(result: dict[str, Any]) -> list[str]:
    """Sections that did not end by themselves, and tasks that failed."""
    bad = [f"{name}: {part['ended']}" for name, part in result["sections"].items() if part["ended"] != "done"]
    return bad + [
        f"{name}, {row['task']}: {row['error']}"
        for name, part in result["sections"].items()
        for row in part["rows"]
        if "error" in row
    ]


def _run(arguments: list[str], seconds: float, say: Say) -> str:
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
