"""Rewards by name, and the scores of answers: 1 for a right answer and 0 for a wrong one.

exact    the words are the reference's, ignoring case and whitespace
number   the last number, or the one after "####", equals the reference
choice   the last letter that stands alone is the reference: "B", "(B)", "The answer is B."
code     the program of the answer passes the problem's tests, in the sandbox

FILE.py:NAME is a function of one's own:

    def reward(problem, answer):        # problem: question, answer, choices, data; answer: the assistant's text
        return float(problem["answer"] in answer)
"""

import math
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial

from danalab import tables
from danalab.chat.sandbox import CannotIsolate, run_tests
from danalab.chat.tasks.base import Problem
from danalab.errors import UserError, first_line
from danalab.hardware import available_cores

Reward = Callable[[Problem, str], float]
"""(problem, answer of the assistant as text) -> score."""

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_MAX_DIGITS = 100
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


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


def code(problem: Problem, answer: str, *, trusted: bool = False) -> float:
    """1 where the tests pass. Raises UserError: this system cannot isolate programs, and they are not trusted."""
    data = problem.data
    program, prompt = program_of(problem, answer), data["prompt"] + "\n    pass\n"
    try:
        ended = run_tests(program, data["entry_point"], data["tests"], prompt=prompt, trusted=trusted)
        return float(ended == "passed")
    except CannotIsolate as obstacle:
        raise UserError(
            f"the reward code runs programs of the model, which cannot be isolated here: {obstacle}; "
            "--trust-model-code runs them anyway"
        ) from None


def program_of(problem: Problem, answer: str) -> str:
    """The last block of code of the answer, or the whole answer; after the prompt if it continues it."""
    blocks = _BLOCK.findall(answer)
    found = blocks[-1] if blocks else answer
    prompt, name = problem.data["prompt"], problem.data["entry_point"]
    if not re.search(rf"^def {re.escape(name)}\b", found, re.MULTILINE):
        return prompt + found
    imports = [line for line in prompt.splitlines() if line.startswith(("import ", "from "))]
    return "\n".join([*imports, found])


REWARDS: dict[str, Reward] = {"exact": exact, "number": number, "choice": choice, "code": code}


def own_reward(address: str) -> Reward:
    """The function at FILE.py:NAME, or `reward` of FILE.py. UserError: there is none."""
    function = tables.load(address if ".py:" in address else f"{address}:reward")

    def score(problem: Problem, answer: str) -> float:
        question = {"question": problem.question, "answer": problem.answer, "system": problem.system}
        return function({**question, "choices": list(problem.choices), "data": dict(problem.data)}, answer)

    return score


class Scorer:
    """(problem, answer) -> score, by the problem's reward or `reward` (a name, FILE.py or FILE.py:NAME).

    `ranks` processes share the cores. `trusts_model_code`: programs of the model also run where this system cannot
    isolate them. UserError: unknown name, or no such file.
    """

    def __init__(self, reward: str | None = None, *, ranks: int = 1, trusts_model_code: bool = False):
        self._name, self._threads = reward, max(1, available_cores() // ranks)
        self._rewards = {**REWARDS, "code": partial(code, trusted=trusts_model_code)}
        if reward is not None and ".py" in reward:
            self._rewards[reward], self._threads = own_reward(reward), 1
        elif reward is not None:
            tables.key_of(REWARDS, reward, "reward")

    def __call__(self, problem: Problem, answer: str) -> float:
        """The score. Raises UserError: the reward is unknown, raised, or gave no finite number."""
        name = self._name or problem.reward
        function = tables.lookup(self._rewards, name, "reward")
        try:
            value = float(function(problem, answer))
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"reward {name}: {type(error).__name__}: {first_line(error)} at {answer[:60]!r}"
            ) from error
        if not math.isfinite(value):
            raise UserError(
                f"reward {name}: returned {value} for the answer {answer[:60]!r}; it must be finite"
            )
        return value

    def score_all(self, pairs: Iterable[tuple[Problem, str]]) -> list[float]:
        """The scores of (problem, answer) pairs, in order; programs of the model run on all cores."""
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(lambda pair: self(*pair), pairs))
