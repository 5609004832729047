"""Tasks: questions with checkable answers, generated or from data sets; mixtures of them."""

from danalab.chat.tasks.base import TASKS, TEST, TRAIN, Problem, Task, TaskMixture, make_task
from danalab.chat.tasks.generated import Arithmetic, Counting, Dialogue, Identity, Spelling
from danalab.chat.tasks.loaded import Arc, Gsm8k, HumanEval, JsonlTask, LoadedTask, Mmlu, SmolTalk

__all__ = [
    "TASKS", "TEST", "TRAIN", "Arc", "Arithmetic", "Counting", "Dialogue", "Gsm8k", "HumanEval", "Identity",
    "JsonlTask", "LoadedTask", "Mmlu", "Problem", "SmolTalk", "Spelling", "Task", "TaskMixture", "make_task",
]  # fmt: skip
