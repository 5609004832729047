"""GSM8K: word problems of primary-school arithmetic, solved in steps with a calculator.

Source: Cobbe et al. 2021, arXiv 2110.14168; openai/gsm8k on the hub.
"""

import re
from pathlib import Path

from danalab.chat.tasks.base import TRAIN, LoadedTask, Problem
from danalab.chat.tasks.registry import TASKS
from danalab.chat.tasks.rows import Row, load_hub_rows, read_rows, text_field
from danalab.errors import UserError

_CALL = re.compile(r"<<([^<>=]*)=([^<>]*)>>")
"""The data set's mark of a calculation, e.g. <<48/2=24>>."""


class Gsm8k(LoadedTask):
    """Word problems."""

    name = "gsm8k"
    summary = "word problems of primary-school arithmetic (Cobbe et al. 2021)"

    def __init__(self, *, split: str = TRAIN, path: Path | None = None):
        """Args: path: a file or folder in place of the hub."""
        rows = load_hub_rows("openai/gsm8k", "main", split) if path is None else read_rows(path, split)
        super().__init__([_problem(place, row) for place, row in rows])


def _problem(place: str, row: Row) -> Problem:
    question, solution = text_field(row, "question", place), text_field(row, "answer", place)
    steps, mark, answer = solution.rpartition("####")
    if not mark or not answer.strip():
        raise UserError(f'{place}: no answer: a solution ends with "#### NUMBER"')
    return Problem(question, answer.strip().replace(",", ""), "number", _parts(f"{steps}#### {answer.strip()}"))


def _parts(solution: str) -> tuple[dict[str, str], ...]:
    """The solution with its marked calculations as calls of the calculator."""
    parts, end = [], 0
    for match in _CALL.finditer(solution):
        parts += [
            {"type": "text", "text": solution[end : match.start()]},
            {"type": "python", "text": match[1]},
            {"type": "python_output", "text": match[2]},
        ]
        end = match.end()
    return tuple(part for part in (*parts, {"type": "text", "text": solution[end:]}) if part["text"])


TASKS.add(Gsm8k.name, Gsm8k)
