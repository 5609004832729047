"""Tasks: questions with checkable answers, generated or from data sets; mixtures of them."""

from danalab.chat.tasks.arithmetic import Arithmetic
from danalab.chat.tasks.base import TEST, TRAIN, Problem, Task
from danalab.chat.tasks.gsm8k import Gsm8k
from danalab.chat.tasks.humaneval import HumanEval
from danalab.chat.tasks.identity import Identity
from danalab.chat.tasks.jsonl import JsonlTask
from danalab.chat.tasks.letters import Counting, Spelling
from danalab.chat.tasks.mixture import TaskMixture
from danalab.chat.tasks.multiple_choice import Arc, Mmlu
from danalab.chat.tasks.registry import TASKS, make_task

__all__ = [
    "TASKS",
    "TEST",
    "TRAIN",
    "Arc",
    "Arithmetic",
    "Counting",
    "Gsm8k",
    "HumanEval",
    "Identity",
    "JsonlTask",
    "Mmlu",
    "Problem",
    "Spelling",
    "Task",
    "TaskMixture",
    "make_task",
]
