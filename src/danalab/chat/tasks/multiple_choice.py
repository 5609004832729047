"""Multiple choice: MMLU (57 subjects) and ARC (science questions of schools).

Sources: Hendrycks et al. 2021, arXiv 2009.03300, cais/mmlu; Clark et al. 2018, arXiv 1803.05457, allenai/ai2_arc.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from danalab.chat.tasks.base import TEST, TRAIN, LoadedTask, Problem, choice_question
from danalab.chat.tasks.registry import TASKS
from danalab.chat.tasks.rows import Row, load_hub_rows, read_rows, text_field
from danalab.errors import UserError

LETTERS = "ABCDE"


def choice_problem(question: str, options: Sequence[str], answer: int) -> Problem:
    """A multiple choice, whose answer is a letter."""
    letters = tuple(LETTERS[: len(options)])
    return Problem(choice_question(question, options, letters), letters[answer], "choice", choices=letters)


class _MultipleChoice(LoadedTask):
    def __init__(self, problems: Sequence[Problem]):
        super().__init__(problems)
        self.baseline = sum(1 / len(each.choices) for each in problems) / len(problems)


class Mmlu(_MultipleChoice):
    """Questions of 57 subjects."""

    name = "mmlu"
    summary = "multiple choice of 57 subjects (Hendrycks et al. 2021)"

    def __init__(self, *, split: str = TEST, subject: str = "all", path: Path | None = None):
        """Args:
        split: test, validation, dev, or train (the auxiliary training set).
        path: a file or folder in place of the hub: columns question, choices, answer; or the original CSV files.
        """
        asked = "auxiliary_train" if split == TRAIN else split
        rows = load_hub_rows("cais/mmlu", subject, asked) if path is None else read_rows(path, asked)
        super().__init__([_of_mmlu(place, row) for place, row in rows])


class Arc(_MultipleChoice):
    """Science questions."""

    name = "arc"
    summary = "science questions of schools, easy or challenge (Clark et al. 2018)"

    def __init__(self, *, split: str = TEST, level: str = "easy", path: Path | None = None):
        """Args:
            level: easy or challenge.
            path: a file or folder in place of the hub.

        Raises:
            UserError: another level, or malformed data.
        """
        if level not in ("easy", "challenge"):
            raise UserError(f"task arc: level {level}: must be easy or challenge")
        config = f"ARC-{level.capitalize()}"
        rows = load_hub_rows("allenai/ai2_arc", config, split) if path is None else read_rows(path, split)
        super().__init__([_of_arc(place, row) for place, row in rows])


def _of_mmlu(place: str, row: Row) -> Problem:
    if "0" in row:  # a CSV file without a head: question, four options, letter
        options = [text_field(row, str(column), place) for column in range(1, 5)]
        return choice_problem(text_field(row, "0", place), options, _index(text_field(row, "5", place), "ABCD", place))
    row = row["train"] if isinstance(row.get("train"), Mapping) else row  # so the auxiliary training set has them
    options = [str(option) for option in _texts(row.get("choices"), place, "choices")]
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(options):
        raise UserError(f'{place}: the field "answer" must be the index of one of the {len(options)} choices')
    return choice_problem(text_field(row, "question", place), options, answer)


def _of_arc(place: str, row: Row) -> Problem:
    """A row of the hub, or a line of the original files, where question and choices are nested."""
    question, choices = row.get("question"), row.get("choices")
    if isinstance(question, Mapping):
        question, choices = question.get("stem"), question.get("choices")
    if isinstance(choices, Mapping):
        texts, labels = choices.get("text"), choices.get("label")
    else:
        listed = _texts(choices, place, "choices")
        texts, labels = [each.get("text") for each in listed], [each.get("label") for each in listed]
    texts, labels = _texts(texts, place, "choices"), _texts(labels, place, "choices")
    asked = text_field({"question": question}, "question", place)
    return choice_problem(asked, texts, _index(text_field(row, "answerKey", place), labels, place))


def _texts(value: object, place: str, name: str) -> list:
    if not isinstance(value, list) or not 2 <= len(value) <= len(LETTERS):
        raise UserError(f'{place}: the field "{name}" must be a list of 2 to {len(LETTERS)}')
    return value


def _index(answer: str, labels: Sequence[str], place: str) -> int:
    if answer not in labels:
        raise UserError(f'{place}: the answer "{answer}" is not one of {", ".join(map(str, labels))}')
    return list(labels).index(answer)


TASKS.add(Mmlu.name, Mmlu)
TASKS.add(Arc.name, Arc)
