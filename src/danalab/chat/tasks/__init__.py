"""Tasks: questions with checkable answers, generated or from data sets; mixtures of them."""

import inspect
from typing import Any

from danalab import tables
from danalab.chat.tasks.base import TEST, TRAIN, Problem, Task, TaskMixture
from danalab.chat.tasks.generated import Arithmetic, Counting, Spelling
from danalab.chat.tasks.hub import Arc, Gsm8k, HumanEval, Mmlu, SmolTalk
from danalab.chat.tasks.loaded import JsonlTask
from danalab.chat.tasks.manners import Dialogue, Identity
from danalab.errors import UserError, nearest

__all__ = ["TASKS", "TEST", "TRAIN", "Problem", "Task", "TaskMixture", "make_task"]

TASKS: dict[str, type[Task]] = {
    "arithmetic": Arithmetic,
    "spelling": Spelling,
    "counting": Counting,
    "identity": Identity,
    "dialogue": Dialogue,
    "gsm8k": Gsm8k,
    "humaneval": HumanEval,
    "mmlu": Mmlu,
    "arc": Arc,
    "smoltalk": SmolTalk,
    "jsonl": JsonlTask,
}


def make_task(text: str, **defaults: Any) -> tuple[Task, float]:
    """(the task of NAME[:KEY=VALUE,...], its weight in a mixture); `defaults` fill settings that the task has.

    NAME is one of `TASKS`, FILE.jsonl, or FILE.py:CLASS. UserError: unknown task or setting, a value of the wrong type,
    or data that cannot be read.
    """
    from pydantic import ConfigDict, ValidationError, validate_call

    kind, given = task_of(text)
    known = {name: value.default for name, value in inspect.signature(kind).parameters.items()}
    weight = _weight(text, given.pop("weight", "1"))
    for key in given:
        if key not in known:
            raise UserError(
                f"task {text}: unknown setting '{key}'{nearest(key, known)}; known: {', '.join(known)}"
            )
    settings = {key: value for key, value in defaults.items() if key in known} | given
    # The annotations of the constructor convert the settings, which are text.
    init: Any = kind.__init__
    task = kind.__new__(kind)
    try:
        validate_call(config=ConfigDict(arbitrary_types_allowed=True))(init)(task, **settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"task {text}: {first['loc'][-1]}: {first['msg'].lower()}") from error
    return task, weight


def task_of(text: str) -> tuple[type[Task], dict[str, str]]:
    """(class of a task, its settings as text) of NAME[:KEY=VALUE,...]. UserError: it is malformed, or unknown."""
    name, _, rest = text.strip().partition(":")
    if name.endswith(".py"):
        address, _, rest = rest.partition(":")
        return tables.load(f"{name}:{address}"), _settings(text, rest)
    if name.endswith((".jsonl", ".jsonl.gz")):
        return JsonlTask, {**_settings(text, rest), "path": name}
    return tables.lookup(TASKS, name, "task"), _settings(text, rest)


def _settings(text: str, rest: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or key.strip() in settings:
            raise UserError(f"task {text}: '{part}': settings are KEY=VALUE,KEY=VALUE, each once")
        settings[key.strip().replace("-", "_")] = value.strip()
    return settings


def _weight(text: str, value: str) -> float:
    try:
        weight = float(value)
    except ValueError:
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise UserError(f"task {text}: weight is {value}; it must be a positive number")
    return weight
