"""The last number of the answer, or the one after "####", equals the reference."""

import re
from decimal import Decimal

from danalab.chat.rewards.registry import REWARDS
from danalab.chat.tasks.base import Problem

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_MAX_DIGITS = 100


def number(problem: Problem, answer: str) -> float:
    """1 where the numbers are equal; 72, 72.0 and 72.00 are, and so are 1000 and 1,000."""
    marked = answer.rpartition("####")[2]
    found, reference = _NUMBER.findall(marked), _NUMBER.findall(problem.answer)
    if not found or not reference:
        return 0.0
    given = found[0] if marked != answer else found[-1]
    return float(_value(given) is not None and _value(given) == _value(reference[-1]))


def _value(text: str) -> Decimal | None:
    return Decimal(text.replace(",", "")) if len(text) <= _MAX_DIGITS else None


REWARDS.add("number", number)
