"""Tasks of known data sets, of the Hugging Face hub or local files.

gsm8k       word problems with a calculator      Cobbe et al. 2021, arXiv 2110.14168, openai/gsm8k
humaneval   functions from docstrings, tested    Chen et al. 2021, arXiv 2107.03374, openai/openai_humaneval
mmlu        multiple choice of 57 subjects       Hendrycks et al. 2021, arXiv 2009.03300, cais/mmlu
arc         science questions of schools         Clark et al. 2018, arXiv 1803.05457, allenai/ai2_arc
smoltalk    general conversations, to learn from Ben Allal et al. 2025, arXiv 2502.02737, HuggingFaceTB/smoltalk
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from danalab.chat.dialects import conversation_of
from danalab.chat.tasks.base import TEST, TRAIN, Problem
from danalab.chat.tasks.loaded import LoadedTask, Row, choice_problem, read_rows, text_field
from danalab.errors import UserError, first_line, import_extra

MAX_CHOICES = 5
"""Largest number of options of a question of MMLU or ARC."""


def hub_task(
    name: str,
    problem_of: Callable[[str, Row], Problem],
    repository: str,
    config: str | None,
    split: str,
    path: Path | None,
) -> LoadedTask:
    """A task whose rows are on the hub, or in a local file or folder, `path`."""
    if path is not None:
        return LoadedTask(name, [problem_of(where, row) for where, row in read_rows(path, split)])
    datasets = import_extra("datasets", f"the data set {repository}")
    try:
        found: Any = datasets.load_dataset(repository, config, split=split)
    except Exception as error:  # the library raises errors of a dozen packages
        advice = "for a local copy give the task path=FILE or path=FOLDER"
        raise UserError(f"{repository} ({split}): the hub says: {first_line(error)}; {advice}") from error
    places = (f"{repository} {split} row {number}" for number in count(1))
    return LoadedTask(name, list(map(problem_of, places, found)))


def gsm8k(*, split: str = TRAIN, path: Path | None = None) -> LoadedTask:
    """Word problems of primary-school arithmetic, solved in steps with a calculator."""
    return hub_task("gsm8k", _of_gsm8k, "openai/gsm8k", "main", split, path)


def humaneval(*, path: Path | None = None) -> LoadedTask:
    """Functions from their docstrings, checked by tests that run in a sandbox; `path`: HumanEval.jsonl.gz."""
    split = TEST if path is None else ""
    return hub_task("humaneval", _of_humaneval, "openai/openai_humaneval", None, split, path)


def mmlu(*, split: str = TEST, subject: str = "all", path: Path | None = None) -> LoadedTask:
    """Questions of 57 subjects; `split` is test, validation, dev or train."""
    part = "auxiliary_train" if split == TRAIN else split
    return hub_task("mmlu", _of_mmlu, "cais/mmlu", subject, part, path)


def arc(*, split: str = TEST, level: str = "easy", path: Path | None = None) -> LoadedTask:
    """Science questions, easy or challenge."""
    if level not in ("easy", "challenge"):
        raise UserError(f"task arc: level is {level}; it must be easy or challenge")
    return hub_task("arc", _of_arc, "allenai/ai2_arc", f"ARC-{level.capitalize()}", split, path)


def smoltalk(
    *, split: str = TRAIN, size: int = 100_000, subset: str = "all", path: Path | None = None
) -> LoadedTask:
    """General conversations (the first `size`) for training only: no reward knows whether another answer is right."""
    if size < 1:
        raise UserError(f"task smoltalk: size is {size}; it must be at least 1")
    part = split if path is not None else f"{split}[:{size}]"
    task = hub_task("smoltalk", _of_messages, "HuggingFaceTB/smoltalk", subset, part, path)
    return LoadedTask("smoltalk", task[:size])


def _of_gsm8k(where: str, row: Row) -> Problem:
    question, solution = text_field(row, "question", where), text_field(row, "answer", where)
    steps, mark, answer = solution.rpartition("####")
    if not mark or not answer.strip():
        raise UserError(f'{where}: no answer: a solution ends with "#### NUMBER"')
    return Problem(question, answer.strip().replace(",", ""), "number", f"{steps}#### {answer.strip()}")


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


def _of_messages(where: str, row: Row) -> Problem:
    conversation = conversation_of({"messages": row.get("messages")}, where)
    turns = [
        Problem(question, answer.text, "exact")
        for question, answer in conversation.turns()
        if question and answer
    ]
    if not turns:
        raise UserError(f"{where}: no answer in the conversation")
    return replace(turns[0], later=tuple(turns[1:]))


def _of_mmlu(where: str, row: Row) -> Problem:
    row = (
        row["train"] if isinstance(row.get("train"), Mapping) else row
    )  # so the auxiliary training set has them
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
    answer = text_field(row, "answerKey", where)
    if answer not in labels:
        raise UserError(f'{where}: the answer "{answer}" is not one of {", ".join(map(str, labels))}')
    return choice_problem(asked, texts, labels.index(answer))


def _texts(value: object, where: str, name: str) -> list:
    if not isinstance(value, list) or not 2 <= len(value) <= MAX_CHOICES:
        raise UserError(f'{where}: the field "{name}" must be a list of 2 to {MAX_CHOICES}')
    return value
