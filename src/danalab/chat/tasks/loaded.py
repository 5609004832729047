"""Tasks whose problems are in memory, from JSONL of one's own, and the reading of rows of files.

FILE.jsonl  {"question": "6 * 7?", "answer": "42", "reward": "number", "solution": "6 * 7 = 42", "system": "Be brief."}
            {"question": "2 + 2?", "choices": ["3", "4"], "answer": "B"}                reward to system may be left out
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from danalab.chat.tasks.base import Problem, Task
from danalab.errors import UserError, first_line, import_extra
from danalab.files import parse_json, read_text

Row = Mapping[str, Any]
SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FIELDS = ("question", "answer", "reward", "solution", "system", "choices")


class LoadedTask(Task):
    """A task whose problems are in memory; the baseline of multiple choice is the share of lucky guesses."""

    def __init__(self, name: str, problems: Sequence[Problem]):
        """Raises UserError if there are no problems."""
        if not problems:
            raise UserError(f"task {name}: no problems")
        self.name, self._problems = name, problems
        if problems[0].choices:
            self.baseline = sum(1 / max(1, len(each.choices)) for each in problems) / len(problems)

    def __len__(self) -> int:
        return len(self._problems)

    def problem(self, position: int) -> Problem:
        return self._problems[position]


def jsonl(*, path: Path, reward: str = "exact") -> LoadedTask:
    """Problems of a file or folder; `reward`: of those without their own. A UserError names the malformed line."""
    return LoadedTask(path.name, [_of_line(where, row, reward) for where, row in read_rows(path)])


def _of_line(where: str, row: Row, reward: str) -> Problem:
    for name in row:
        if name not in FIELDS:
            raise UserError(f'{where}: unknown field "{name}"; known: {", ".join(FIELDS)}')
    question, answer = text_field(row, "question", where), text_field(row, "answer", where)
    given = [name for name in ("solution", "system") if row.get(name) is not None]
    more: dict[str, Any] = {name: text_field(row, name, where) for name in given}
    reward = text_field(row, "reward", where) if row.get("reward") is not None else reward
    options = row.get("choices")
    if options is None:
        return Problem(question, answer, reward, **more)
    if not isinstance(options, list) or not 2 <= len(options) <= len(LETTERS):
        raise UserError(f'{where}: "choices" must be a list of 2 to {len(LETTERS)} texts')
    letters = LETTERS[: len(options)]
    if answer not in list(letters):
        raise UserError(f'{where}: the answer "{answer}" is not one of the letters {", ".join(letters)}')
    return choice_problem(question, [str(option) for option in options], letters.index(answer), **more)


def choice_problem(question: str, options: Sequence[str], answer: int, **more: Any) -> Problem:
    """A multiple choice, answered by a letter: the question, a line per option, and `more` fields."""
    letters = tuple(LETTERS[: len(options)])
    lines = "\n".join(f"{letter}. {option}" for letter, option in zip(letters, options, strict=True))
    asked = f"{question.strip()}\n{lines}\nAnswer with the letter of the right option."
    return Problem(asked, letters[answer], "choice", choices=letters, **more)


# ---- rows of files ----


def read_rows(path: str | Path, split: str = "") -> list[tuple[str, Row]]:
    """(origin for messages, row) of each row of a file, or of a folder's files that have `split` in their names."""
    path = Path(path)
    if not path.is_dir():
        return list(_read_file(path))
    known = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(SUFFIXES))
    if not known:
        raise UserError(f"{path}: no {', '.join(SUFFIXES)} in this folder")
    files = [file for file in known if split in str(file.relative_to(path))] if split else known
    if not files:
        raise UserError(
            f"{path}: no file of the split '{split}'; there are: {', '.join(f.name for f in known[:6])}"
        )
    return [found for file in files for found in _read_file(file)]


def text_field(row: Row, name: str, where: str) -> str:
    """The text of a field, stripped; a UserError names the origin where it is missing, empty or no text."""
    value = row.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        problem = "missing" if value is None else "empty" if isinstance(value, str) else "not text"
        raise UserError(f'{where}: the field "{name}" is {problem}')
    return value.strip()


def _read_file(path: Path) -> Iterator[tuple[str, Row]]:
    if not path.name.endswith(SUFFIXES):
        raise UserError(f"{path}: the file of a task is one of {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        parquet = import_extra("pyarrow.parquet", f"reading {path.name}")
        try:
            rows = parquet.read_table(path).to_pylist()
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: not a readable parquet file: {first_line(error)}") from error
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
        return
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            row = parse_json(line, where)
            if not isinstance(row, dict):
                raise UserError(f"{where}: an object is expected")
            yield where, row
