"""Scores answers by the reward of each problem, or by one for all; a reward that misbehaves ends in one line."""

import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from danalab.chat.rewards.registry import REWARDS, Reward
from danalab.chat.rewards.user_reward import UserReward
from danalab.chat.tasks.base import Problem
from danalab.data.environment import available_cores
from danalab.errors import UserError, first_line


class Scorer:
    """(problem, answer) -> score."""

    def __init__(self, reward: str | None = None, *, seconds: float = 30.0, ranks: int = 1):
        """Args:
            reward: for all problems: a name, FILE.py or FILE.py:NAME; default that of each problem.
            seconds: after which a call of a function from a file counts as hanging.
            ranks: processes that score at the same time and share the cores.

        Raises:
            UserError: unknown name, or no such file.
        """
        self._name, self._function = reward, None if reward is None else _find(reward, seconds)
        # Threads wait for the programs of `code`. A function from a file has one process, which takes one call a time.
        self._threads = 1 if isinstance(self._function, UserReward) else max(1, available_cores() // ranks)

    def __call__(self, problem: Problem, answer: str) -> float:
        """The score.

        Raises:
            UserError: the reward is unknown, raised, hung, or gave no finite number.
        """
        name = self._name or problem.reward
        function = self._function or REWARDS.get(name)
        try:
            value = float(function(problem, answer))
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"reward {name}: {type(error).__name__}: {first_line(error)} at the answer {answer[:60]!r}"
            ) from error
        if not math.isfinite(value):
            raise UserError(f"reward {name}: returned {value} for the answer {answer[:60]!r}; it must be finite")
        return value

    def score_all(self, pairs: Iterable[tuple[Problem, str]]) -> list[float]:
        """The scores of (problem, answer) pairs, in their order; programs run on all cores.

        Raises:
            UserError: as for a single one.
        """
        pool = ThreadPoolExecutor(self._threads)
        try:
            return list(pool.map(lambda pair: self(*pair), pairs))
        finally:
            pool.shutdown(cancel_futures=True)


def _find(reward: str, seconds: float) -> Reward:
    if ".py" in reward:
        return UserReward(reward, seconds=seconds)
    return REWARDS.get(reward)
