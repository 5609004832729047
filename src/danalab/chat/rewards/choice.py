"""The answer names the right letter of a multiple choice."""

import re

from danalab.chat.rewards.registry import REWARDS
from danalab.chat.tasks.base import Problem


def choice(problem: Problem, answer: str) -> float:
    """1 where the last letter that stands alone is the reference: "B", "(B)", "The answer is B."."""
    letters = re.findall(r"(?<![A-Za-z])[A-Z](?![A-Za-z'])", answer)
    named = [letter for letter in letters if letter in problem.choices]
    return float(bool(named) and named[-1] == problem.answer)


REWARDS.add("choice", choice)
