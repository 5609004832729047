"""What a task is: a sequence of problems, each with a question, a reference answer and the name of its reward.

    NAME[:KEY=VALUE,...]    e.g. arithmetic:max=9,operations=+-*   gsm8k:split=test   my_tasks.jsonl

A task is a pure function of its settings and the position, a mixture of tasks one of its seed and the position: problem
i is the same on every machine and rank.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from danalab.data.mixture import BLOCK, block_counts
from danalab.data.order.permutation import Permutation
from danalab.errors import UserError, nearest
from danalab.registry import Registry

TRAIN, TEST = "train", "test"
WEIGHT = "weight"
"""Setting of every task: its share in a mixture."""

Content = str | Sequence[Mapping[str, str]]
"""Content of a message: text, or parts {"type": "text" | "python" | "python_output", "text": ...}."""


@dataclass(frozen=True)
class Problem:
    """A question with a checkable answer."""

    question: str
    """The user's message."""
    answer: str
    """The reference for the reward, e.g. "72" or "B"."""
    reward: str
    """Name of the reward (`danalab.chat.rewards`)."""
    solution: Content = ""
    """An assistant's message that earns the whole reward, for supervised fine-tuning; empty: the answer."""
    choices: tuple[str, ...] = ()
    """Letters of a multiple choice."""
    system: str = ""
    """System message; empty: none."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What else the reward needs, e.g. tests of a program."""
    history: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """Messages before the question."""
    later: tuple["Problem", ...] = field(default=(), repr=False)
    """The next turns of the conversation."""

    def prompt(self) -> dict[str, Any]:
        """The conversation up to the question, as a line of JSONL has it."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"messages": [*system, *self.history, {"role": "user", "content": self.question}]}

    def conversation(self) -> dict[str, Any]:
        """The conversation with all its solutions, as a line of JSONL has it."""
        messages = [*self.prompt()["messages"], {"role": "assistant", "content": self.content}]
        for turn in self.later:
            messages += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.content}]
        return {"messages": messages}

    @property
    def content(self) -> str | list[Mapping[str, str]]:
        """The solution as the content of a message."""
        return (self.solution if isinstance(self.solution, str) else list(self.solution)) or self.answer

    @property
    def needs_tool(self) -> bool:
        """Whether the solution calls a tool."""
        return not isinstance(self.solution, str) and any(part["type"] == "python" for part in self.solution)

    def next_turn(self, said: Mapping[str, Any] | None) -> "Problem":
        """The next turn, after this message of the assistant; None: it said nothing, and the turn is forgotten."""
        turn = () if said is None else ({"role": "user", "content": self.question}, said)
        return replace(self.later[0], system=self.system, history=(*self.history, *turn), later=self.later[1:])


class Task(ABC, Sequence[Problem]):
    """Problems by position."""

    name: str
    summary: ClassVar[str]
    baseline: float = 0.0
    """Expected score of random answers, for centred scores."""

    def __init__(self) -> None:
        """The parameters of a subclass are its settings."""

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


TASKS: Registry[type[Task]] = Registry("task")


def make_task(text: str, **defaults: Any) -> tuple[Task, float]:
    """(the task of a specification, its weight in a mixture); `defaults` fill settings that the task has.

    UserError: unknown task or setting, a value of the wrong type, or data that cannot be read.
    """
    from pydantic import ConfigDict, ValidationError, validate_call

    name, given = parse_specification(text)
    kind = TASKS.get("jsonl") if name.endswith((".jsonl", ".jsonl.gz")) else TASKS.get(name)
    known = {key: value.default for key, value in inspect.signature(kind).parameters.items()}
    if kind is TASKS.get("jsonl") and name != "jsonl":
        given["path"] = name
    value, weight = given.pop(WEIGHT, "1"), -1.0
    with suppress(ValueError):
        weight = float(value)
    if not 0 < weight < float("inf"):
        raise UserError(f"task {text}: weight is {value}; it must be a positive number")
    for key in given:
        if key not in known:
            raise UserError(f"task {text}: unknown setting '{key}'{nearest(key, known)}; known: {', '.join(known)}")
    settings = {key: value for key, value in defaults.items() if key in known} | given
    # The annotations of the constructor convert the settings, which are text.
    init: Any = kind.__init__
    build = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(init)
    task = kind.__new__(kind)
    try:
        build(task, **settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"task {text}: {first['loc'][-1]}: {first['msg'].lower()}") from error
    return task, weight


def parse_specification(text: str) -> tuple[str, dict[str, str]]:
    """(name or path, settings as text) of NAME[:KEY=VALUE,...]; UserError: no value, or a setting given twice."""
    name, _, rest = text.strip().partition(":")
    if not name:
        raise UserError(f"task '{text}': a name or a path is missing")
    settings: dict[str, str] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or key.strip() in settings:
            raise UserError(f"task {text}: '{part}': settings are KEY=VALUE,KEY=VALUE, each once")
        settings[key.strip().replace("-", "_")] = value.strip()
    return name, settings


class MixedProblem(NamedTuple):
    """A problem of a mixture."""

    problem: Problem
    task: int
    """Index of its task in the mixture."""
    position: int
    """Its position in the task."""


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
        self._order = lru_cache(maxsize=4 * len(tasks))(self._compute_order)

    def __getitem__(self, position: int) -> MixedProblem:
        """The problem at a position >= 0."""
        number, offset = divmod(position, BLOCK)
        owners, ranks = self._block(number)
        task = int(owners[offset])
        ordinal = int(ranks[offset]) + number * int(self._counts[task])
        epoch, within = divmod(ordinal, len(self.tasks[task]))
        index = int(self._order(task, epoch)(np.array([within]))[0])
        return MixedProblem(self.tasks[task].problem(index), task, index)

    def _compute_block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(task, rank among its problems of the block) of each position of a block."""
        owner = np.repeat(np.arange(len(self._counts)), self._counts)
        rank = np.concatenate([np.arange(count) for count in self._counts])
        shuffled = Permutation(BLOCK, f"tasks|{self._seed}|{number}".encode())(np.arange(BLOCK))
        return owner[shuffled], rank[shuffled]

    def _compute_order(self, task: int, epoch: int) -> Permutation:
        key = f"{task}|{self.tasks[task].name}|{self._seed}|{epoch}"
        return Permutation(len(self.tasks[task]), key.encode())
