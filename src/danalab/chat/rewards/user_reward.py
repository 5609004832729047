"""A reward function of one's own, FILE.py:NAME, in a process of its own: it may raise, print, hang or crash.

def reward(problem, answer):        # problem: question, answer, choices, data; answer: the assistant's text
    return float(problem["answer"] in answer)
"""

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from danalab.chat.rewards.sandbox import PROCESS
from danalab.chat.tasks.base import Problem
from danalab.errors import UserError

DEFAULT_NAME = "reward"
START_SECONDS = 60.0
"""Time for the file's imports."""


class UserReward:
    """Calls the function in a process that is started at the first call.

    Args:
        text: FILE.py, whose function is `reward`, or FILE.py:NAME.
        seconds: after which a call counts as hanging.
    Raises:
        UserError: no such file.
    """

    def __init__(self, text: str, *, seconds: float = 30.0):
        self._process: subprocess.Popen[bytes] | None = None
        path, colon, name = text.rpartition(":") if text.rpartition(":")[0].endswith(".py") else (text, "", "")
        self.name, self._path, self._function = text, Path(path), name if colon else DEFAULT_NAME
        if not self._path.is_file():
            raise UserError(f"--reward {text}: no such file")
        self._seconds = seconds

    def __call__(self, problem: Problem, answer: str) -> float:
        """The score.

        Raises:
            UserError: the function is missing, raised, hung, ended its process, or gave no finite number.
        """
        if self._process is None:
            task = json.dumps({"path": str(self._path), "function": self._function})
            words = [sys.executable, str(PROCESS), task]
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._receive(START_SECONDS, "the import")
        assert self._process.stdin is not None
        question = {**asdict(problem), "choices": list(problem.choices), "data": dict(problem.data)}
        del question["solution"]
        try:
            self._process.stdin.write(f"{(question, answer)!a}, {{}}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `_receive` says that it has ended
        value = self._receive(self._seconds, f"the answer {answer[:60]!r}")
        assert value is not None
        return value

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def __del__(self) -> None:
        self.close()

    def _receive(self, seconds: float, about: str) -> float | None:
        """The value of the process's next line; that of a definition is None."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline, line = time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                self.close()
                raise UserError(f"reward {self.name}: no result after {seconds:g} s for {about}; it was stopped")
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                code = process.wait()
                self.close()
                raise UserError(f"reward {self.name}: its process ended with status {code} at {about}")
            line += part
        said = line.decode().strip()
        if said.startswith("!"):
            self.close()
            raise UserError(f"reward {self.name}: {said[1:]} at {about}")
        return None if said == "=None" else float(said[1:])
