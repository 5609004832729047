"""Exercise 3, a solution: a task for the chat stages, with a checkable answer.

    python examples/exercises/sorting_task.py

"Sort the letters of 'bade'." -> "a b d e". Problems are drawn, so they need no file; test problems never appear in
training, which the base class holds.
"""

from __future__ import annotations

import random

from danalab.chat.rewards import Scorer
from danalab.chat.tasks import TEST, TRAIN, Problem, make_task
from danalab.chat.tasks.generated import GeneratedTask
from danalab.errors import UserError


class Sorting(GeneratedTask):
    """Sort the letters of a word."""

    name = "sorting"

    def __init__(self, *, letters: int = 5, seed: int = 0, size: int = 1_000_000, split: str = TRAIN):
        """Args: letters: of a word, at most.

        Raises:
            UserError: a setting out of range.
        """
        super().__init__(seed=seed, size=size, split=split)
        if not 2 <= letters <= 26:
            raise UserError(f"task {self.name}: letters {letters}: must be 2 to 26")
        self._letters = letters

    def draw(self, generator: random.Random) -> Problem:
        """A problem, a function of the generator's state."""
        word = "".join(generator.sample("abcdefghijklmnopqrstuvwxyz", generator.randint(2, self._letters)))
        return Problem(f"Sort the letters of '{word}'.", " ".join(sorted(word)), "exact")


def main() -> None:
    task, _ = make_task(f"{__file__}:Sorting:letters=4", split=TEST)
    score = Scorer()
    for problem in task[0:3]:
        print(problem.question, "->", problem.answer, " reward", score(problem, problem.answer))


if __name__ == "__main__":
    main()
