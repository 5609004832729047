"""Values that grow in stages, as pure functions of the step: `--batch-ramp 8:1000,16:3000`, `--seq-len-ramp ...`.

A ramp is written VALUE:STEP,VALUE:STEP,...: each value holds until its step, the full value after the last one. The
sum of the values before a step is a sum over stages, so any step is reached directly.
"""

from dataclasses import dataclass
from itertools import pairwise

from danalab.errors import UserError


@dataclass(frozen=True)
class Ramp:
    """An integer for each step >= 0."""

    final: int
    """The value after the last stage."""
    stages: tuple[tuple[int, int], ...] = ()
    """(value, step at which it ends), in order."""

    @classmethod
    def parse(cls, text: str | None, final: int, flag: str) -> "Ramp":
        """Parse a ramp that ends at `final`; None means constant."""
        if text is None:
            return cls(final)
        stages: list[tuple[int, int]] = []
        for part in text.split(","):
            value, colon, until = part.strip().partition(":")
            if not (colon and value.isascii() and value.isdigit() and until.isascii() and until.isdigit()):
                raise UserError(f"{flag} is {text}; it must be VALUE:STEP,VALUE:STEP,..., e.g. 8:1000,16:3000")
            stages.append((int(value), int(until)))
        ends = [0, *(until for _, until in stages)]
        if any(later <= earlier for earlier, later in pairwise(ends)):
            raise UserError(f"{flag} {text}: the steps must increase, from 1")
        for value, _ in stages:
            if not 1 <= value <= final:
                raise UserError(f"{flag} {text}: {value} is not between 1 and the full value, {final}")
        return cls(final, tuple(stages))

    @property
    def values(self) -> list[int]:
        """All values, the full one last."""
        return [*(value for value, _ in self.stages), self.final]

    def at(self, step: int) -> int:
        """The value at a step, counted from 0."""
        return next((value for value, until in self.stages if step < until), self.final)

    def total(self, steps: int) -> int:
        """Sum of the values of the first `steps` steps."""
        total = begin = 0
        for value, until in self.stages:
            total += value * (min(steps, until) - begin)
            begin = min(steps, until)
        return total + self.final * (steps - begin)

    def steps_within(self, budget: int) -> int:
        """The largest number of steps whose values sum to at most `budget`."""
        total = begin = 0
        for value, until in self.stages:
            if total + value * (until - begin) > budget:
                return begin + (budget - total) // value
            total += value * (until - begin)
            begin = until
        return begin + (budget - total) // self.final

    def __str__(self) -> str:
        return ",".join([*(f"{value}:{until}" for value, until in self.stages), str(self.final)])
