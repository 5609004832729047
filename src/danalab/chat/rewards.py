"""Rewards by name, and the scores of answers: 1 for a right answer and 0 for a wrong one.

exact    the words are the reference's, ignoring case and whitespace
number   the last number, or the one after "####", equals the reference
choice   the last letter that stands alone is the reference: "B", "(B)", "The answer is B."
code     the program of the answer passes the problem's tests (an annex: `danalab.chat.programs`)

FILE.py:NAME is a function of one's own, in a process of its own (it may raise, print, hang, crash or leave processes):

    def reward(problem, answer):        # problem: question, answer, choices, data; answer: the assistant's text
        return float(problem["answer"] in answer)
"""

import contextlib
import inspect
import json
import math
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

from danalab.chat.function_process import MAX_LINE
from danalab.chat.tasks.base import Problem
from danalab.errors import UserError, first_line
from danalab.hardware import available_cores
from danalab.registry import Registry

Reward = Callable[..., float]
"""(problem, answer of the assistant as text) -> score. One that runs programs of the model also takes `trusted`:
whether they may run where this system cannot isolate them."""

REWARDS: Registry[Reward] = Registry("reward")
DEFAULT_NAME = "reward"
START_SECONDS = 60.0
"""Time for the file's imports."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_MAX_DIGITS = 100
SECONDS = 5.0
PROCESS = Path(__file__).with_name("function_process.py")


class Scorer:
    """(problem, answer) -> score, by the problem's reward or `reward` (a name, FILE.py or FILE.py:NAME).

    A file's function hangs after `seconds`; `ranks` processes share the cores. `trusts_model_code`: programs of the
    model also run where this system cannot isolate them. UserError: unknown name, or no such file.
    """

    def __init__(
        self, reward: str | None = None, *, seconds: float = 30.0, ranks: int = 1, trusts_model_code: bool = False
    ):
        self._name, self._trusts_model_code = reward, trusts_model_code
        self._function: Reward | None = None
        if reward is not None:
            self._function = UserReward(reward, seconds=seconds) if ".py" in reward else REWARDS.get(reward)
        # Threads wait for programs of the model. A function from a file has one process, which takes one call a time.
        self._threads = 1 if isinstance(self._function, UserReward) else max(1, available_cores() // ranks)

    def __call__(self, problem: Problem, answer: str) -> float:
        """The score. Raises UserError: the reward is unknown, raised, hung, or gave no finite number."""
        name = self._name or problem.reward
        function = self._function or REWARDS.get(name)
        try:
            takes_trust = "trusted" in inspect.signature(function).parameters
            more = {"trusted": self._trusts_model_code} if takes_trust else {}
            value = float(function(problem, answer, **more))
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"reward {name}: {type(error).__name__}: {first_line(error)} at {answer[:60]!r}") from error
        if not math.isfinite(value):
            raise UserError(f"reward {name}: returned {value} for the answer {answer[:60]!r}; it must be finite")
        return value

    def score_all(self, pairs: Iterable[tuple[Problem, str]]) -> list[float]:
        """The scores of (problem, answer) pairs, in order, on all cores; errors as for a single one."""
        if self._threads == 1:
            return [self(*pair) for pair in pairs]
        pool = ThreadPoolExecutor(self._threads)
        try:
            return list(pool.map(lambda pair: self(*pair), pairs))
        finally:
            pool.shutdown(cancel_futures=True)


def exact(problem: Problem, answer: str) -> float:
    """1 where answer and reference are the same words, ignoring case and whitespace."""
    return float(answer.casefold().split() == problem.answer.casefold().split())


def number(problem: Problem, answer: str) -> float:
    """1 where the numbers are equal; 72, 72.0 and 72.00 are, and so are 1000 and 1,000."""
    marked = answer.rpartition("####")[2]
    given, reference = _NUMBER.findall(marked), _NUMBER.findall(problem.answer)
    if not given or not reference:
        return 0.0
    value = _value(given[0] if marked != answer else given[-1])
    return float(value is not None and value == _value(reference[-1]))


def _value(text: str) -> Decimal | None:
    return Decimal(text.replace(",", "")) if len(text) <= _MAX_DIGITS else None


def choice(problem: Problem, answer: str) -> float:
    """1 where the last letter of an option that stands alone is the reference."""
    letters = re.findall(r"(?<![A-Za-z])[A-Z](?![A-Za-z'])", answer)
    named = [letter for letter in letters if letter in problem.choices]
    return float(bool(named) and named[-1] == problem.answer)


class UserReward:
    """Calls `reward` of FILE.py, or FILE.py:NAME (UserError: no such file), in a process that its first call starts.

    A call counts as hanging after `seconds`. Values come over a socket that is neither the function's standard output
    nor inherited by the programs that it starts, each behind the random token of its question: what else is written
    there ends in an error, and is no value.
    """

    def __init__(self, text: str, *, seconds: float = 30.0):
        self._process: subprocess.Popen[bytes] | None = None
        path, colon, name = text.rpartition(":") if text.rpartition(":")[0].endswith(".py") else (text, "", "")
        self.name, self._path, self._function = text, Path(path), name if colon else DEFAULT_NAME
        if not self._path.is_file():
            raise UserError(f"--reward {text}: no such file")
        self._seconds = seconds

    def __call__(self, problem: Problem, answer: str) -> float:
        """The score; UserError: the function is missing, raised, hung, ended its process, or gave no finite number."""
        if self._process is None:
            task = json.dumps({"path": str(self._path), "function": self._function})
            words = [sys.executable, str(PROCESS), task]
            self._connection, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    words, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True
                )
            self._ask("", "", START_SECONDS, "the import")
        question = {**asdict(problem), "choices": list(problem.choices), "data": dict(problem.data)}
        for name in ("solution", "later"):
            del question[name]
        token = secrets.token_hex(8)
        line = f"{token} {(question, answer)!a}, {{}}\n"
        return float(self._ask(line, token, self._seconds, f"the answer {answer[:60]!r}"))

    def close(self) -> int | None:
        """End the process with those that it has started; its status."""
        process, self._process = self._process, None
        if process is None:
            return None
        self._connection.close()
        return end(process)

    def __del__(self) -> None:
        self.close()

    def _ask(self, line: str, token: str, seconds: float, about: str) -> str:
        """The process's answer to a line, as a literal; that of a definition, which comes without one, is None."""
        deadline, answer = time.monotonic() + seconds, b""
        try:
            self._connection.settimeout(seconds)
            self._connection.sendall(line.encode())
            while not answer.endswith(b"\n") and len(answer) <= MAX_LINE:
                self._connection.settimeout(max(deadline - time.monotonic(), 1e-3))
                part = self._connection.recv(65536)
                if not part:
                    raise ConnectionError
                answer += part
        except TimeoutError:
            self.close()
            raise UserError(f"reward {self.name}: no result after {seconds:g} s for {about}; it was stopped") from None
        except ConnectionError:
            raise UserError(f"reward {self.name}: its process ended with status {self.close()} at {about}") from None
        said = answer.decode(errors="replace").removesuffix("\n")
        kind, value = said[len(token) :][:1], said[len(token) + 1 :]
        if not said.startswith(token) or kind not in ("=", "!") or "\n" in value:
            self.close()
            raise UserError(f"reward {self.name}: it wrote {said[:60]!r} where its value was expected, at {about}")
        if kind == "!":
            self.close()
            raise UserError(f"reward {self.name}: {value} at {about}")
        return value


def end(process: subprocess.Popen[Any]) -> int:
    """End a process of `function_process` with all that it has started; its status."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(SECONDS)
    process.kill()  # one that it has started cannot be killed
    return process.wait()


for _reward in (exact, number, choice):
    REWARDS.add(_reward.__name__, _reward)
