"""Tasks: questions with checkable answers, generated or from data sets; mixtures of them."""

import inspect
from collections.abc import Callable
from pathlib import Path
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

    make: Callable[..., Task]
    name, _, rest = text.strip().partition(":")
    if name.endswith(".py"):
        address, _, rest = rest.partition(":")
        make = tables.load(f"{name}:{address}")
    elif name.endswith((".jsonl", ".jsonl.gz")):
        make, defaults = jsonl, {**defaults, "path": Path(name)}
    else:
        make = tables.lookup(TASKS, name, "task")
    given = _settings(text, rest)
    # The annotations convert the settings, which are text.
    kinds = get_type_hints(make.__init__ if inspect.isclass(make) else make)
    kinds.pop("return", None)
    kinds["weight"], given = float, {"weight": "1", **given}
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
    weight = settings.pop("weight")
    if not 0 < weight < float("inf"):
        raise UserError(f"task {text}: weight is {weight}; it must be a positive number")
    try:
        inspect.signature(make).bind(**settings)
    except TypeError as error:
        raise UserError(f"task {text}: {error}") from None
    return make(**settings), weight


def _settings(text: str, rest: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or key.strip() in settings:
            raise UserError(f"task {text}: '{part}': settings are KEY=VALUE,KEY=VALUE, each once")
        settings[key.strip().replace("-", "_")] = value.strip()
    return settings
