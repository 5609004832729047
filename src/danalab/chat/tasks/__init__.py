"""Tasks: questions with checkable answers, generated or from data sets; mixtures of them."""

from danalab.chat.tasks.base import TASKS, TEST, TRAIN, Problem, Task, TaskMixture, make_task
from danalab.chat.tasks.generated import Arithmetic, Counting, Spelling
from danalab.chat.tasks.loaded import JsonlTask, LoadedTask

__all__ = [
    "TASKS", "TEST", "TRAIN", "Arithmetic", "Counting", "JsonlTask", "LoadedTask", "Problem", "Spelling", "Task",
    "TaskMixture", "make_task",
]  # fmt: skip


def __getattr__(name: str) -> type[Task]:
    """Tasks of annexes by the names of their classes, which stood here until version 0.2; use `TASKS.get`."""
    for each in map(TASKS.get, TASKS.names()):
        if each.__name__ == name:
            return each
    raise AttributeError(f"module {__name__} has no attribute {name}")
