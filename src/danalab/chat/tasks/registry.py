"""Tasks by name, and their specifications on the command line.

NAME[:KEY=VALUE,...]   e.g. arithmetic:max=9,operations=+-*   gsm8k:split=test   my_tasks.jsonl
"""

import inspect
from collections.abc import Sequence
from typing import Any

from danalab.chat.tasks.base import Task
from danalab.errors import UserError, nearest
from danalab.registry import Registry

TASKS: Registry[type[Task]] = Registry("task")

WEIGHT = "weight"
"""Setting of every task: its share in a mixture."""


def make_task(text: str, **defaults: Any) -> tuple[Task, float]:
    """(the task of a specification, its weight in a mixture).

    Args: defaults: settings that are used where the task has them and the specification does not give them.

    Raises:
        UserError: unknown task or setting, a value of the wrong type, or data that cannot be read.
    """
    from pydantic import ConfigDict, ValidationError, validate_call

    name, given = parse_specification(text)
    kind = TASKS.get("jsonl") if name.endswith((".jsonl", ".jsonl.gz")) else TASKS.get(name)
    known = {key: value.default for key, value in inspect.signature(kind).parameters.items()}
    if kind is TASKS.get("jsonl") and name != "jsonl":
        given["path"] = name
    weight = _weight(text, given.pop(WEIGHT, "1"))
    for key in given:
        if key not in known:
            raise UserError(f"task {text}: unknown setting '{key}'{nearest(key, known)}; known: {', '.join(known)}")
    settings = {key: value for key, value in defaults.items() if key in known} | given
    init: Any = kind.__init__
    build = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(init)
    task = kind.__new__(kind)
    try:
        build(task, **settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"task {text}: {first['loc'][-1]}: {first['msg'].lower()}") from error
    return task, weight


def parse_specification(text: str) -> tuple[str, dict[str, str]]:
    """(name or path, settings as text) of NAME[:KEY=VALUE,...].

    Raises:
        UserError: a setting without a value, or given twice.
    """
    name, _, rest = text.strip().partition(":")
    if not name:
        raise UserError(f"task '{text}': a name or a path is missing")
    settings: dict[str, str] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or key.strip() in settings:
            raise UserError(f"task {text}: '{part}': settings are KEY=VALUE,KEY=VALUE, each once")
        settings[key.strip().replace("-", "_")] = value.strip()
    return name, settings


def _weight(text: str, value: str) -> float:
    try:
        weight = float(value)
    except ValueError:
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise UserError(f"task {text}: weight {value}: must be a positive number")
    return weight


def describe_tasks() -> Sequence[tuple[str, str]]:
    """(name, summary) of every task, in order of registration."""
    return [(name, TASKS.get(name).summary) for name in TASKS]
