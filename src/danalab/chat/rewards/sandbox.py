"""Runs a program of a model: another process, with bounds on time, memory, files and processes, and without a network.

    unshare (Linux, where the system allows it): no network interface, own process ids, all processes end with the first
    resource limits: CPU seconds, address space, size and number of files; they cannot be raised again
    audit hook: no sockets, no processes, no foreign functions, no files outside of the working folder

Isolated Python (-I), empty environment, empty temporary working folder. This stops programs that a model writes by
mistake; an attacker needs a virtual machine.

Source for the checks that programs evade: Chen et al. 2021, arXiv 2107.03374, section 2.3.
"""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

SECONDS = 5.0
MEMORY_MIB = 512
FILE_MIB = 16

_NAMESPACES = (
    ("--user", "--net", "--pid", "--fork", "--kill-child"),
    ("--net", "--pid", "--fork", "--kill-child"),
    ("--user", "--net"),
)


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended."""

    passed: bool
    """It ran to its last line without an exception."""
    reason: str
    """"passed", "timeout", or the exception that ended it."""
    seconds: float


def run_program(
    program: str, *, seconds: float = SECONDS, memory_mib: int = MEMORY_MIB, file_mib: int = FILE_MIB
) -> ProgramResult:
    """Run a Python program; it passes where it reaches its end.

    A program that ends itself, e.g. by `sys.exit(0)` before its tests, does not pass.

    Args:
        seconds: of wall time and, rounded up, of CPU time.
        memory_mib: address space [MiB].
        file_mib: size of a file that it writes [MiB].
    """
    nonce, start = secrets.token_hex(16), time.monotonic()
    child = Path(__file__).with_name("sandbox_child.py")
    limits = [str(int(seconds) + 1), str(memory_mib << 20), str(file_mib << 20)]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [*isolation(), sys.executable, "-I", str(child), *limits],
            cwd=folder,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:  # the child sends a few bytes only, whatever the program prints
            out, err = process.communicate(f"{nonce}\n{program}".encode(errors="replace"), timeout=seconds)
        except subprocess.TimeoutExpired:
            return ProgramResult(False, "timeout", time.monotonic() - start)
        finally:
            _kill(process)
    took = time.monotonic() - start
    if out == nonce.encode() and process.returncode == 0:
        return ProgramResult(True, "passed", took)
    lines = err.decode(errors="replace").strip().splitlines()
    return ProgramResult(False, lines[-1][:200] if lines else f"ended itself (status {process.returncode})", took)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


_PROBE = threading.Lock()


def isolation() -> tuple[str, ...]:
    """The command in front of the program that takes its network away; empty where the system allows none."""
    with _PROBE:  # programs that start together try it once
        return _find_isolation()


@cache
def _find_isolation() -> tuple[str, ...]:
    unshare = shutil.which("unshare")
    for namespaces in _NAMESPACES if unshare else ():
        command = (str(unshare), *namespaces)
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([*command, sys.executable, "-I", "-c", ""], capture_output=True, timeout=20)
            if done.returncode == 0:
                return command
    log.warning("this system allows no namespaces: programs of the model lose the network by Python's audit hook alone")
    return ()
