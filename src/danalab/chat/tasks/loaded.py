"""Tasks from data sets, of the Hugging Face hub or local files, and from JSONL of one's own.

gsm8k       word problems with a calculator      Cobbe et al. 2021, arXiv 2110.14168, openai/gsm8k
humaneval   functions from docstrings, tested    Chen et al. 2021, arXiv 2107.03374, openai/openai_humaneval
mmlu        multiple choice of 57 subjects       Hendrycks et al. 2021, arXiv 2009.03300, cais/mmlu
arc         science questions of schools         Clark et al. 2018, arXiv 1803.05457, allenai/ai2_arc
smoltalk    general conversations, to learn from Ben Allal et al. 2025, arXiv 2502.02737, HuggingFaceTB/smoltalk
FILE.jsonl  {"question": "6 * 7?", "answer": "42", "reward": "number", "solution": "6 * 7 = 42", "system": "Be brief."}
            {"question": "2 + 2?", "choices": ["3", "4"], "answer": "B"}                reward to system may be left out
"""

import csv
import gzip
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from danalab.chat.conversations import Conversation
from danalab.chat.tasks.base import TASKS, TEST, TRAIN, Problem, Task
from danalab.errors import UserError, first_line, import_extra
from danalab.files import parse_json

Row = Mapping[str, Any]
SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".parquet")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_CHOICES = 5
"""Largest number of options of a question of MMLU or ARC."""
FIELDS = ("question", "answer", "reward", "solution", "system", "choices")
_CALL = re.compile(r"<<([^<>=]*)=([^<>]*)>>")  # GSM8K's mark of a calculation, e.g. <<48/2=24>>


class LoadedTask(Task):
    """A task whose problems are in memory; the baseline of multiple choice is the share of lucky guesses."""

    def __init__(self, problems: Sequence[Problem], name: str = ""):
        """Raises UserError if there are no problems."""
        if not problems:
            raise UserError(f"task {name or self.name}: no problems")
        self._problems = problems
        if problems[0].choices:
            self.baseline = sum(1 / max(1, len(each.choices)) for each in problems) / len(problems)

    def __len__(self) -> int:
        return len(self._problems)

    def problem(self, position: int) -> Problem:
        return self._problems[position]


class HubTask(LoadedTask):
    """A task whose rows are on the hub, or in a local file or folder, `path`."""

    def __init__(
        self, problem_of: Callable[[str, Row], Problem], repo: str, config: str | None, split: str, path: Path | None
    ):
        rows = load_hub_rows(repo, config, split) if path is None else read_rows(path, split)
        super().__init__([problem_of(where, row) for where, row in rows])


class Gsm8k(HubTask):
    """Word problems of primary-school arithmetic, solved in steps with a calculator."""

    name = "gsm8k"
    summary = "word problems of primary-school arithmetic (Cobbe et al. 2021)"

    def __init__(self, *, split: str = TRAIN, path: Path | None = None):
        super().__init__(_of_gsm8k, "openai/gsm8k", "main", split, path)


def _of_gsm8k(where: str, row: Row) -> Problem:
    question, solution = text_field(row, "question", where), text_field(row, "answer", where)
    steps, mark, answer = solution.rpartition("####")
    if not mark or not answer.strip():
        raise UserError(f'{where}: no answer: a solution ends with "#### NUMBER"')
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


class HumanEval(HubTask):
    """Functions from their docstrings, checked by tests that run in a sandbox; `path`: HumanEval.jsonl.gz."""

    name = "humaneval"
    summary = "Python functions from docstrings, checked by tests (Chen et al. 2021)"

    def __init__(self, *, split: str = TEST, path: Path | None = None):
        super().__init__(_of_humaneval, "openai/openai_humaneval", None, split if path is None else "", path)


def _of_humaneval(where: str, row: Row) -> Problem:
    text_field(row, "prompt", where)
    prompt = str(row["prompt"])  # with its line ends
    name = text_field(row, "entry_point", where)
    tests = f"{text_field(row, 'test', where)}\n\ncheck({name})\n"
    solution = f"{prompt}{row.get('canonical_solution') or '    pass'}"
    return Problem(
        f"Complete this Python function.\n```python\n{prompt}```",
        name,
        "code",
        f"```python\n{solution}```",
        data={"prompt": prompt, "entry_point": name, "tests": tests},
    )


class Mmlu(HubTask):
    """Questions of 57 subjects; `split` is test, validation, dev or train, `path` a table or the original CSV files."""

    name = "mmlu"
    summary = "multiple choice of 57 subjects (Hendrycks et al. 2021)"

    def __init__(self, *, split: str = TEST, subject: str = "all", path: Path | None = None):
        super().__init__(_of_mmlu, "cais/mmlu", subject, "auxiliary_train" if split == TRAIN else split, path)


class Arc(HubTask):
    """Science questions, easy or challenge."""

    name = "arc"
    summary = "science questions of schools, easy or challenge (Clark et al. 2018)"

    def __init__(self, *, split: str = TEST, level: str = "easy", path: Path | None = None):
        if level not in ("easy", "challenge"):
            raise UserError(f"task arc: level is {level}; it must be easy or challenge")
        super().__init__(_of_arc, "allenai/ai2_arc", f"ARC-{level.capitalize()}", split, path)


class SmolTalk(HubTask):
    """General conversations (the first `size`) for training only: no reward knows whether another answer is right."""

    name = "smoltalk"
    summary = "general conversations, to learn from (Ben Allal et al. 2025)"

    def __init__(self, *, split: str = TRAIN, size: int = 100_000, subset: str = "all", path: Path | None = None):
        if size < 1:
            raise UserError(f"task smoltalk: size is {size}; it must be at least 1")
        part = split if path is not None else f"{split}[:{size}]"
        super().__init__(_of_messages, "HuggingFaceTB/smoltalk", subset, part, path)
        self._problems = self._problems[:size]


def _of_messages(where: str, row: Row) -> Problem:
    conversation = Conversation.of({"messages": row.get("messages")}, where)
    turns = [
        Problem(question, answer.text, "exact") for question, answer in conversation.turns() if question and answer
    ]
    if not turns:
        raise UserError(f"{where}: no answer in the conversation")
    return replace(turns[0], later=tuple(turns[1:]))


def _of_mmlu(where: str, row: Row) -> Problem:
    if "0" in row:  # a CSV file without a head: question, four options, letter
        options = [text_field(row, str(column), where) for column in range(1, 5)]
        return choice_problem(text_field(row, "0", where), options, _index(text_field(row, "5", where), "ABCD", where))
    row = row["train"] if isinstance(row.get("train"), Mapping) else row  # so the auxiliary training set has them
    options = [str(option) for option in _texts(row.get("choices"), where, "choices")]
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(options):
        raise UserError(f'{where}: the field "answer" must be the index of one of the {len(options)} choices')
    return choice_problem(text_field(row, "question", where), options, answer)


def _of_arc(where: str, row: Row) -> Problem:
    """A row of the hub, or a line of the original files, where question and choices are nested."""
    question, choices = row.get("question"), row.get("choices")
    if isinstance(question, Mapping):
        question, choices = question.get("stem"), question.get("choices")
    if isinstance(choices, Mapping):
        texts, labels = choices.get("text"), choices.get("label")
    else:
        listed = _texts(choices, where, "choices")
        texts, labels = [each.get("text") for each in listed], [each.get("label") for each in listed]
    texts, labels = _texts(texts, where, "choices"), _texts(labels, where, "choices")
    asked = text_field({"question": question}, "question", where)
    return choice_problem(asked, texts, _index(text_field(row, "answerKey", where), labels, where))


def _texts(value: object, where: str, name: str) -> list:
    if not isinstance(value, list) or not 2 <= len(value) <= MAX_CHOICES:
        raise UserError(f'{where}: the field "{name}" must be a list of 2 to {MAX_CHOICES}')
    return value


def _index(answer: str, labels: Sequence[str], where: str) -> int:
    if answer not in labels:
        raise UserError(f'{where}: the answer "{answer}" is not one of {", ".join(map(str, labels))}')
    return list(labels).index(answer)


class JsonlTask(LoadedTask):
    """Problems of a file; `reward`: of those without their own. A UserError names the malformed line."""

    name = "jsonl"
    summary = "problems of your own: FILE.jsonl, or jsonl:path=FOLDER"

    def __init__(self, *, path: Path, reward: str = "exact"):
        self.name = path.name
        super().__init__([_of_line(where, row, reward) for where, row in read_rows(path)], str(path))


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


# ---- rows of files and of the hub ----


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
        raise UserError(f"{path}: no file of the split '{split}'; there are: {', '.join(f.name for f in known[:6])}")
    return [found for file in files for found in _read_file(file)]


def load_hub_rows(repository: str, config: str | None, split: str) -> list[tuple[str, Row]]:
    """(origin, row) of each row of a data set of the hub; a UserError says how to use local files instead."""
    datasets = import_extra("datasets", f"the data set {repository}")
    try:
        found: Any = datasets.load_dataset(repository, config, split=split)
    except Exception as error:  # the library raises errors of a dozen packages
        advice = "for a local copy give the task path=FILE or path=FOLDER"
        raise UserError(f"{repository} ({split}): the hub says: {first_line(error)}; {advice}") from error
    return [(f"{repository} {split} row {number}", row) for number, row in enumerate(found, 1)]


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
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            if path.suffix == ".csv":
                for number, row in enumerate(csv.reader(file), 1):
                    yield f"{path}, row {number}", {str(column): value for column, value in enumerate(row)}
            else:
                yield from _lines(file, path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except (EOFError, OSError) as error:  # of an archive, too
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or first_line(error)}") from error


def _lines(file: Any, path: Path) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise UserError(f"{where}: an object is expected")
        yield where, row


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    pa, pq = (import_extra(name, f"reading {path.name}") for name in ("pyarrow", "pyarrow.parquet"))
    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowException as error:
        raise UserError(f"{path}: not a readable parquet file: {first_line(error)}") from error
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", row


for _task in (Gsm8k, HumanEval, Mmlu, Arc, SmolTalk, JsonlTask):
    TASKS.add(_task.name, _task)
