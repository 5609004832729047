"""What a task is: a sequence of problems, each with a question, a reference answer and the name of its reward.

    NAME[:KEY=VALUE,...]    e.g. arithmetic:max=9,operations=+-*   gsm8k:split=test   my_tasks.jsonl

A task is a pure function of its settings and the position, a mixture of tasks one of its seed and the position: problem
i is the same on every machine and rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from danalab.chat.messages import Conversation, Message
from danalab.data.mixture import BLOCK, block_counts
from danalab.data.order.permutation import EndlessOrder, Permutation
from danalab.errors import UserError

TRAIN, TEST = "train", "test"


@dataclass(frozen=True)
class Problem:
    """A question with a checkable answer."""

    question: str
    """The user's message."""
    answer: str
    """The reference for the reward, e.g. "72" or "B"."""
    reward: str
    """Name of the reward (`danalab.chat.rewards`)."""
    solution: str = ""
    """An assistant's message that earns the whole reward, for supervised fine-tuning; empty: the answer."""
    choices: tuple[str, ...] = ()
    """Letters of a multiple choice."""
    system: str = ""
    """System message; empty: none."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What else the reward needs, e.g. tests of a program."""
    history: tuple[Message, ...] = field(default=(), repr=False)
    """Messages before the question."""
    later: tuple["Problem", ...] = field(default=(), repr=False)
    """The next turns of the conversation."""

    def prompt(self) -> Conversation:
        """The conversation up to the question."""
        return Conversation((*self._before(), Message.of("user", self.question)))

    def conversation(self) -> Conversation:
        """The conversation with all its solutions."""
        messages = self._before()
        for turn in (self, *self.later):
            messages += [Message.of("user", turn.question), Message.of("assistant", turn.content)]
        return Conversation(tuple(messages))

    def _before(self) -> list[Message]:
        return [*([Message.of("system", self.system)] if self.system else []), *self.history]

    @property
    def content(self) -> str:
        """What the assistant says in the solution."""
        return self.solution or self.answer

    def next_turn(self, said: Message | None) -> "Problem":
        """The next turn, after this message of the assistant; None: it said nothing, and the turn is forgotten."""
        turn = () if said is None else (Message.of("user", self.question), said)
        return replace(
            self.later[0], system=self.system, history=(*self.history, *turn), later=self.later[1:]
        )


class Task(ABC, Sequence[Problem]):
    """Problems by position."""

    name: str
    baseline: float = 0.0
    """Expected score of random answers, for centred scores."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def problem(self, position: int) -> Problem:
        """The problem at 0 <= position < len."""

    def __getitem__(self, position: Any) -> Any:
        """A problem, or the problems of a slice."""
        if isinstance(position, slice):
            return [self.problem(i) for i in range(len(self))[position]]
        return self.problem(range(len(self))[position])


class TaskMixture:
    """An endless list of problems; `weights`: share of each task, default equal. UserError: no or an empty task."""

    def __init__(self, tasks: Sequence[Task], weights: Sequence[float] | None = None, *, seed: int = 0):
        if not tasks:
            raise UserError("the mixture of tasks is empty: name at least one task")
        for task in tasks:
            if not len(task):
                raise UserError(f"task {task.name}: no problems")
        self.tasks, self._seed = list(tasks), seed
        self._counts = np.array(block_counts(weights or [1.0] * len(tasks)))
        self._block = lru_cache(maxsize=4)(self._compute_block)
        keys = [f"{number}|{task.name}|{seed}|".encode() for number, task in enumerate(tasks)]
        self._orders = [EndlessOrder(len(task), key) for task, key in zip(tasks, keys, strict=True)]

    def __getitem__(self, position: int) -> Problem:
        """The problem at a position >= 0."""
        number, offset = divmod(position, BLOCK)
        owners, ranks = self._block(number)
        task = int(owners[offset])
        ordinal = int(ranks[offset]) + number * int(self._counts[task])
        return self.tasks[task].problem(int(self._orders[task](ordinal, ordinal + 1)[0]))

    def _compute_block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(task, rank among its problems of the block) of each position of a block."""
        owner = np.repeat(np.arange(len(self._counts)), self._counts)
        rank = np.concatenate([np.arange(count) for count in self._counts])
        shuffled = Permutation(BLOCK, f"tasks|{self._seed}|{number}".encode())(np.arange(BLOCK))
        return owner[shuffled], rank[shuffled]
