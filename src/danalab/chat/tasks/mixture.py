"""Mixtures of tasks: position -> problem, a pure function of the seed.

Blocks of positions hold each task exactly in its share (`danalab.data.mixture`); a task's own problems come in a
keyed random order, another one in each of its epochs.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from danalab.chat.tasks.base import Problem, Task
from danalab.data.mixture import BLOCK, block_counts
from danalab.data.order.permutation import Permutation
from danalab.errors import UserError


class Drawn(NamedTuple):
    """A problem of a mixture."""

    problem: Problem
    task: int
    """Index of its task in the mixture."""
    position: int
    """Its position in the task."""


class TaskMixture:
    """An endless list of problems."""

    def __init__(self, tasks: Sequence[Task], weights: Sequence[float] | None = None, *, seed: int = 0):
        """Args: weights: share of each task; default equal.

        Raises:
            UserError: no task, an empty one, or bad weights.
        """
        if not tasks:
            raise UserError("the mixture of tasks is empty: name at least one task")
        for task in tasks:
            if not len(task):
                raise UserError(f"task {task.name}: no problems")
        self.tasks, self._seed = list(tasks), seed
        self._counts = np.array(block_counts(weights or [1.0] * len(tasks)))
        self._block = lru_cache(maxsize=4)(self._compute_block)
        self._order = lru_cache(maxsize=4 * len(tasks))(self._compute_order)

    def __getitem__(self, position: int) -> Drawn:
        """The problem at a position >= 0."""
        number, offset = divmod(position, BLOCK)
        owners, ranks = self._block(number)
        task = int(owners[offset])
        place = int(ranks[offset]) + number * int(self._counts[task])
        epoch, within = divmod(place, len(self.tasks[task]))
        index = int(self._order(task, epoch)(np.array([within]))[0])
        return Drawn(self.tasks[task].problem(index), task, index)

    def _compute_block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(task, rank among its problems of the block) of each position of a block."""
        owner = np.repeat(np.arange(len(self._counts)), self._counts)
        rank = np.concatenate([np.arange(count) for count in self._counts])
        shuffled = Permutation(BLOCK, f"tasks|{self._seed}|{number}".encode())(np.arange(BLOCK))
        return owner[shuffled], rank[shuffled]

    def _compute_order(self, task: int, epoch: int) -> Permutation:
        key = f"{task}|{self.tasks[task].name}|{self._seed}|{epoch}"
        return Permutation(len(self.tasks[task]), key.encode())
