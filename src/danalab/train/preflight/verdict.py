"""The verdict of a check."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Verdict:
    """One line about one thing."""

    name: str
    status: Literal["ok", "warning", "failed"]
    text: str
    """What was found and, where it is not ok, what to do."""
