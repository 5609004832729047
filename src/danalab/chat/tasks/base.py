"""What a task is: a sequence of problems, each with a question, a reference answer and the name of its reward.

A task is a pure function of its settings and the position: problem i is the same on every machine and rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from danalab.errors import UserError

TRAIN, TEST = "train", "test"

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

    def prompt(self) -> dict[str, Any]:
        """The conversation up to the question, as a line of JSONL has it."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"messages": [*system, {"role": "user", "content": self.question}]}

    def conversation(self) -> dict[str, Any]:
        """The conversation with the solution, as a line of JSONL has it."""
        messages = self.prompt()["messages"]
        content = self.solution if isinstance(self.solution, str) else list(self.solution)
        return {"messages": [*messages, {"role": "assistant", "content": content or self.answer}]}


class Task(ABC, Sequence[Problem]):
    """Problems by position."""

    name: str
    summary: ClassVar[str]
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


class LoadedTask(Task):
    """A task whose problems are in memory."""

    def __init__(self, problems: Sequence[Problem], name: str = ""):
        """Raises: UserError: no problems."""
        if not problems:
            raise UserError(f"task {name or self.name}: no problems")
        self._problems = problems

    def __len__(self) -> int:
        return len(self._problems)

    def problem(self, position: int) -> Problem:
        """See `Task.problem`."""
        return self._problems[position]


def choice_question(question: str, options: Sequence[str], letters: Sequence[str]) -> str:
    """A multiple choice as a user's message: the question, and a line for each option."""
    lines = "\n".join(f"{letter}. {option}" for letter, option in zip(letters, options, strict=True))
    return f"{question.strip()}\n{lines}\nAnswer with the letter of the right option."
