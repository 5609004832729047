"""The answer is the reference, whatever the case and the spaces."""

from danalab.chat.rewards.registry import REWARDS
from danalab.chat.tasks.base import Problem


def exact(problem: Problem, answer: str) -> float:
    """1 where answer and reference are the same words."""
    return float(_words(answer) == _words(problem.answer))


def _words(text: str) -> list[str]:
    return text.casefold().split()


REWARDS.add("exact", exact)
