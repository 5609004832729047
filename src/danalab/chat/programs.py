"""The reward `code`: the program of the answer passes the problem's tests.

Tests and program are two processes without rights, with limits on time, memory and files, isolated by the kernel
(`program_process`). Where the system cannot isolate, nothing is run unless the user trusts the model's code. No other
tool isolates (bubblewrap, nsjail): they need user namespaces, which containers and distributions switch off, and do not
limit the number of files.

    tests  -- arguments -->  program          the values that come back are compared where the program cannot reach,
           <--- values ----                   and the verdict is taken from the process of the tests

Source for the checks that programs evade: Chen et al. 2021, arXiv 2107.03374, section 2.3.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import danalab
from danalab.chat.rewards import REWARDS, SECONDS, end
from danalab.chat.tasks.base import Problem
from danalab.errors import UserError

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
MEMORY_MIB = 512
FILE_MIB = 1
_FOLDERS = [str(Path(file).parents[1]) for file in (danalab.__file__,)]
_LINES = (
    "import sys",
    f"sys.path[:0] = {_FOLDERS}",  # -I leaves them out, as it leaves out the folder in which the program writes
    "from danalab.chat.program_process import main",
    "del sys.path[:2]",
    "main()",
)
COMMAND = [sys.executable, "-I", "-B", "-c", "\n".join(_LINES)]
_PROBE = threading.Lock()


def code(problem: Problem, answer: str, *, trusted: bool = False) -> float:
    """1 where the tests pass. Raises UserError: this system cannot isolate programs, and they are not trusted."""
    data = problem.data
    result = run_tests(
        program_of(problem, answer), data["entry_point"], data["tests"], prompt=data["prompt"] + "\n    pass\n",
        trusted=trusted,
    )  # fmt: skip
    return float(result.passed)


def program_of(problem: Problem, answer: str) -> str:
    """The last block of code of the answer, or the whole answer; after the prompt if it continues it."""
    blocks = _BLOCK.findall(answer)
    found = blocks[-1] if blocks else answer
    prompt, name = problem.data["prompt"], problem.data["entry_point"]
    if not re.search(rf"^def {re.escape(name)}\b", found, re.MULTILINE):
        return prompt + found
    imports = [line for line in prompt.splitlines() if line.startswith(("import ", "from "))]
    return "\n".join([*imports, found])


@dataclass(frozen=True)
class ProgramResult:
    """How a program fared."""

    passed: bool
    """The tests ran to their end."""
    reason: str
    """"passed", "timeout", or the exception that ended the tests."""


def run_tests(
    program: str,
    function: str,
    tests: str,
    *,
    prompt: str = "",
    seconds: float = SECONDS,
    memory_mib: int = MEMORY_MIB,
    file_mib: int = FILE_MIB,
    trusted: bool = False,
) -> ProgramResult:
    """Run `tests`, statements that call `function` of a program; arguments and values are plain Python values.

    `prompt` defines what else they use. Limits: `seconds` of wall time and, rounded up, of CPU time; address space of
    each process and size of a file [MiB]; `function_process.MAX_CREATIONS` files, folders, links and threads, except of
    `trusted` programs that cannot be isolated. UserError: the system cannot isolate them, and they are not `trusted`.
    """
    obstacle = why_not_isolated()
    if obstacle and not trusted:
        raise UserError(f"the reward code runs programs of the model, which cannot be isolated here: {obstacle}; "
                        "--trust-model-code runs them all the same")  # fmt: skip
    limits = [memory_mib << 20, file_mib << 20]
    common = {"function": function, "seconds": int(seconds) + 1, "limits": limits, "isolated": not obstacle}
    with contextlib.ExitStack() as ends, tempfile.TemporaryFile() as verdict:
        reads_questions, questions, reads_answers, answers = (
            ends.enter_context(os.fdopen(end, "rb" if index % 2 == 0 else "wb"))
            for index, end in enumerate((*os.pipe(), *os.pipe()))
        )
        program_task = {**common, "source": program}
        test_task = {**common, "source": prompt, "tests": tests}
        with (
            _process(program_task, reads_questions, answers, subprocess.DEVNULL),
            _process(test_task, reads_answers, questions, verdict) as tester,
        ):
            ends.close()  # each process sees the end of the other
            try:
                tester.wait(seconds)
            except subprocess.TimeoutExpired:
                return ProgramResult(False, "timeout")
        verdict.seek(0)
        said = verdict.read().decode(errors="replace").strip()
    if tester.returncode == 0 and said == "passed":
        return ProgramResult(True, said)
    return ProgramResult(False, said[-200:] or f"the tests ended with status {tester.returncode}")


@contextlib.contextmanager
def _process(task: dict[str, Any], reads: IO[bytes], writes: IO[bytes], errors: Any) -> Iterator[subprocess.Popen[Any]]:
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(task, file)
        file.flush()
        process = subprocess.Popen(
            [*COMMAND, file.name],
            cwd=folder,
            env={},
            stdin=reads,
            stdout=writes,
            stderr=errors,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end(process)


def why_not_isolated() -> str:
    """What this system lacks to isolate programs; empty where it can."""
    with _PROBE:  # programs that start together try it once
        return _obstacle()


@cache
def _obstacle() -> str:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*COMMAND, "probe"], cwd=folder, env={}, capture_output=True)
    if done.returncode == 0:
        return done.stdout.decode(errors="replace").strip()
    return f"the probe ended with status {done.returncode}: {done.stderr.decode(errors='replace').strip()[-200:]}"


REWARDS.add(code.__name__, code)
