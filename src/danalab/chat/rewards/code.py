"""The program of the answer passes the problem's tests, in a sandbox."""

import re

from danalab.chat.rewards.registry import REWARDS
from danalab.chat.rewards.sandbox import run_program
from danalab.chat.tasks.base import Problem

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def code(problem: Problem, answer: str) -> float:
    """1 where the tests pass."""
    return float(run_program(program_of(problem, answer)).passed)


def program_of(problem: Problem, answer: str) -> str:
    """The last block of code of the answer, or the whole answer, and the tests; after the prompt if it continues it."""
    blocks = _BLOCK.findall(answer)
    found = blocks[-1] if blocks else answer
    prompt, name = problem.data["prompt"], problem.data["entry_point"]
    if re.search(rf"^def {re.escape(name)}\b", found, re.MULTILINE):
        imports = [line for line in prompt.splitlines() if line.startswith(("import ", "from "))]
        found = "\n".join([*imports, found])
    else:
        found = prompt + found
    return f"{found}\n\n{problem.data['tests']}"


REWARDS.add("code", code)
