"""Base of generated tasks: problem i is drawn from a generator that is keyed by task, seed, split and i.

The test problems of a task never appear among its training problems: the hash of a problem's content decides its split,
and a draw for the other split is drawn again.
"""

import hashlib
import random
from abc import abstractmethod

from danalab.chat.tasks.base import TEST, TRAIN, Problem, Task
from danalab.errors import UserError

TEST_SHARE = 8
"""One problem of this number is a test problem."""
_DRAWS = 1000


class GeneratedTask(Task):
    """A task without files."""

    def __init__(self, *, seed: int = 0, size: int = 1_000_000, split: str = TRAIN):
        """Args:
            size: number of problems.
            split: train or test.

        Raises:
            UserError: a size below 1, or another split.
        """
        if size < 1:
            raise UserError(f"task {self.name}: size {size}: must be at least 1")
        if split not in (TRAIN, TEST):
            raise UserError(f"task {self.name}: split {split}: must be {TRAIN} or {TEST}")
        self._seed, self._size, self._split = seed, size, split

    def __len__(self) -> int:
        return self._size

    def problem(self, position: int) -> Problem:
        """See `Task.problem`.

        Raises:
            UserError: the settings leave no problem for this split.
        """
        generator = random.Random(f"{self.name}|{self._seed}|{self._split}|{position}")
        for _ in range(_DRAWS):
            found = self.draw(generator)
            if _is_test(f"{self.name}|{found.question}") == (self._split == TEST):
                return found
        raise UserError(f"task {self.name}: its settings leave no problem for the split {self._split}; widen them")

    @abstractmethod
    def draw(self, generator: random.Random) -> Problem:
        """A problem, a function of the generator's state."""


def _is_test(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] % TEST_SHARE == 0
