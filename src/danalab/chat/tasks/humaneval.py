"""HumanEval: functions from their docstrings, checked by tests that run in a sandbox.

Source: Chen et al. 2021, arXiv 2107.03374; openai/openai_humaneval on the hub.
"""

from pathlib import Path

from danalab.chat.tasks.base import TEST, LoadedTask, Problem
from danalab.chat.tasks.registry import TASKS
from danalab.chat.tasks.rows import Row, load_hub_rows, read_rows, text_field


class HumanEval(LoadedTask):
    """Functions from docstrings."""

    name = "humaneval"
    summary = "Python functions from docstrings, checked by tests (Chen et al. 2021)"

    def __init__(self, *, split: str = TEST, path: Path | None = None):
        """Args: path: a file (HumanEval.jsonl.gz) or folder in place of the hub."""
        rows = load_hub_rows("openai/openai_humaneval", None, split) if path is None else read_rows(path)
        super().__init__([_problem(place, row) for place, row in rows])


def _problem(place: str, row: Row) -> Problem:
    text_field(row, "prompt", place)
    prompt = str(row["prompt"])  # with its line ends
    name = text_field(row, "entry_point", place)
    tests = f"{text_field(row, 'test', place)}\n\ncheck({name})\n"
    solution = f"{prompt}{row.get('canonical_solution') or '    pass'}"
    return Problem(
        f"Complete this Python function.\n```python\n{prompt}```",
        name,
        "code",
        f"```python\n{solution}```",
        data={"prompt": prompt, "entry_point": name, "tests": tests},
    )


TASKS.add(HumanEval.name, HumanEval)
