"""Arithmetic with whole numbers: "What is 12 + 7?"."""

import random

from danalab.chat.tasks.base import TRAIN, Problem
from danalab.chat.tasks.generated import GeneratedTask
from danalab.chat.tasks.registry import TASKS
from danalab.chat.tools import call_tool
from danalab.errors import UserError


class Arithmetic(GeneratedTask):
    """Sums, differences and products of two numbers."""

    name = "arithmetic"
    summary = "sums, differences and products of two numbers"

    def __init__(
        self,
        *,
        max: int = 99,
        operations: str = "+-",
        calculator: bool = False,
        seed: int = 0,
        size: int = 1_000_000,
        split: str = TRAIN,
    ):
        """Args:
            max: largest operand.
            operations: characters among + - *.
            calculator: solutions call the calculator.

        Raises:
            UserError: a setting out of range.
        """
        super().__init__(seed=seed, size=size, split=split)
        if max < 1:
            raise UserError(f"task arithmetic: max {max}: must be at least 1")
        if not operations or set(operations) - set("+-*"):
            raise UserError(f"task arithmetic: operations '{operations}': characters among + - *")
        self._max, self._operations, self._calculator = max, operations, calculator

    def draw(self, generator: random.Random) -> Problem:
        """See `GeneratedTask.draw`."""
        left, right = generator.randint(0, self._max), generator.randint(0, self._max)
        expression = f"{left} {generator.choice(self._operations)} {right}"
        answer = call_tool(expression)
        solution = answer
        if self._calculator:
            solution = (
                {"type": "python", "text": expression},
                {"type": "python_output", "text": answer},
                {"type": "text", "text": answer},
            )
        return Problem(f"What is {expression}?", answer, "number", solution)


TASKS.add(Arithmetic.name, Arithmetic)
