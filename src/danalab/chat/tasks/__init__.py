"""Tasks: questions with checkable answers, generated or from data sets; mixtures of them."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from danalab import tables
from danalab.chat.tasks.base import TEST, TRAIN, Problem, Task, TaskMixture
from danalab.chat.tasks.generated import Arithmetic, Counting, Spelling
from danalab.chat.tasks.hub import arc, gsm8k, humaneval, mmlu, smoltalk
from danalab.chat.tasks.loaded import jsonl
from danalab.chat.tasks.manners import Dialogue, Identity
from danalab.errors import UserError, nearest

__all__ = ["TASKS", "TEST", "TRAIN", "Problem", "Task", "TaskMixture", "make_task"]

TASKS: dict[str, Callable[..., Task]] = {
    "arithmetic": Arithmetic,
    "spelling": Spelling,
    "counting": Counting,
    "identity": Identity,
    "dialogue": Dialogue,
    "gsm8k": gsm8k,
    "humaneval": humaneval,
    "mmlu": mmlu,
    "arc": arc,
    "smoltalk": smoltalk,
    "jsonl": jsonl,
}
"""Name -> what makes the task; its parameters are the task's settings."""


def make_task(text: str, **defaults: Any) -> tuple[Task, float]:
    """(the task of NAME[:KEY=VALUE,...], its weight in a mixture); `defaults` fill settings that the task has.

    NAME is one of `TASKS`, FILE.jsonl, or FILE.py:NAME. UserError: unknown task or setting, a value of the wrong type,
    or data that cannot be read.
    """
    from pydantic import TypeAdapter, ValidationError

    make, given = task_of(text)
    # The annotations convert the settings, which are text.
    kinds = get_type_hints(make.__init__ if inspect.isclass(make) else make)
    kinds.pop("return", None)
    weight = _weight(text, given.pop("weight", "1"))
    settings = {key: value for key, value in defaults.items() if key in kinds}
    for key, value in given.items():
        if key not in kinds:
            raise UserError(
                f"task {text}: unknown setting '{key}'{nearest(key, kinds)}; known: {', '.join(kinds)}"
            )
        try:
            settings[key] = TypeAdapter(kinds[key]).validate_python(value)
        except ValidationError as error:
            raise UserError(f"task {text}: {key}: {error.errors()[0]['msg'].lower()}") from error
    return make(**settings), weight


def task_of(text: str) -> tuple[Callable[..., Task], dict[str, str]]:
    """(what makes a task, its settings as text) of NAME[:KEY=VALUE,...]. UserError: it is malformed, or unknown."""
    name, _, rest = text.strip().partition(":")
    if name.endswith(".py"):
        address, _, rest = rest.partition(":")
        return tables.load(f"{name}:{address}"), _settings(text, rest)
    if name.endswith((".jsonl", ".jsonl.gz")):
        return jsonl, {**_settings(text, rest), "path": name}
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
