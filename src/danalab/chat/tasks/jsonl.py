"""Tasks from JSONL: a problem a line, {"question": ..., "answer": ...}; further fields are optional.

{"question": "Capital of France?", "answer": "Paris", "reward": "exact", "solution": "Paris.", "system": "..."}
{"question": "2 + 2?", "choices": ["3", "4"], "answer": "B"}
"""

from pathlib import Path
from typing import Any

from danalab.chat.tasks.base import LoadedTask, Problem, choice_question
from danalab.chat.tasks.registry import TASKS
from danalab.chat.tasks.rows import Row, read_rows, text_field
from danalab.errors import UserError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FIELDS = ("question", "answer", "reward", "solution", "system", "choices")


class JsonlTask(LoadedTask):
    """Problems of a file of one's own."""

    name = "jsonl"
    summary = "problems of your own: FILE.jsonl, or jsonl:path=FOLDER"

    def __init__(self, *, path: Path, reward: str = "exact"):
        """Args: reward: of problems without one of their own.

        Raises:
            UserError: malformed, empty, or a problem without question or answer; names the line.
        """
        self.name = path.name
        super().__init__([_problem(place, row, reward) for place, row in read_rows(path)], str(path))
        if self._problems[0].choices:
            self.baseline = sum(1 / max(1, len(each.choices)) for each in self._problems) / len(self._problems)


def _problem(place: str, row: Row, reward: str) -> Problem:
    for name in row:
        if name not in FIELDS:
            raise UserError(f'{place}: unknown field "{name}"; known: {", ".join(FIELDS)}')
    question, answer = text_field(row, "question", place), text_field(row, "answer", place)
    more: dict[str, Any] = {
        name: text_field(row, name, place) for name in ("solution", "system") if row.get(name) is not None
    }
    reward = text_field(row, "reward", place) if row.get("reward") is not None else reward
    options = row.get("choices")
    if options is None:
        return Problem(question, answer, reward, **more)
    if not isinstance(options, list) or not 2 <= len(options) <= len(LETTERS):
        raise UserError(f'{place}: "choices" must be a list of 2 to {len(LETTERS)} texts')
    letters = tuple(LETTERS[: len(options)])
    if answer not in letters:
        raise UserError(f'{place}: the answer "{answer}" is not one of the letters {", ".join(letters)}')
    asked = choice_question(question, [str(option) for option in options], letters)
    return Problem(asked, answer, "choice", choices=letters, **more)


TASKS.add(JsonlTask.name, JsonlTask)
