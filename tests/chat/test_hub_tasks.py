"""Tasks of known data sets, from local files."""

import gzip
import json

import pytest

from danalab.chat.rewards import Scorer
from danalab.chat.tasks import make_task
from danalab.errors import UserError


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_gsm8k_calls_the_calculator_where_the_data_marks_a_calculation(tmp_path):
    solution = "She has 48/2=<<48/2=24>>24 left, and 24+1,000=<<24+1000=1024>>1,024.\n#### 1,024"
    write(tmp_path / "train.jsonl", {"question": "How many?", "answer": solution})
    write(tmp_path / "test.jsonl", {"question": "Other?", "answer": "#### 7"})
    task, _ = make_task(f"gsm8k:path={tmp_path}")
    problem = task[0]
    assert (len(task), problem.answer, problem.reward) == (1, "1024", "number")
    assert problem.solution == solution
    score = Scorer()
    assert score(problem, "so it is #### 1024") == 1
    assert score(problem, "#### 1024 or 7") == 1
    assert score(problem, "1025") == 0
    write(tmp_path / "train.jsonl", {"question": "How many?", "answer": "48"})
    with pytest.raises(UserError, match="line 1: no answer"):
        make_task(f"gsm8k:path={tmp_path}")


def test_mmlu_and_arc_in_every_form_in_which_they_are_distributed(tmp_path):
    write(
        tmp_path / "a.jsonl", {"question": "q?", "choices": ["w", "x", "y", "z"], "answer": 2, "subject": "s"}
    )
    mmlu, _ = make_task(f"mmlu:path={tmp_path / 'a.jsonl'}")
    assert (mmlu[0].answer, mmlu[0].choices, mmlu.baseline) == ("C", tuple("ABCD"), 0.25)
    write(
        tmp_path / "c.jsonl",
        {"question": "q?", "choices": {"text": ["w", "x", "y"], "label": ["1", "2", "3"]}, "answerKey": "2"},
        {
            "question": {"stem": "q?", "choices": [{"text": "w", "label": "A"}, {"text": "x", "label": "B"}]},
            "answerKey": "A",
        },
    )
    arc, _ = make_task(f"arc:path={tmp_path / 'c.jsonl'}")
    assert [problem.answer for problem in arc] == ["B", "A"]
    assert arc.baseline == pytest.approx((1 / 3 + 1 / 2) / 2)
    for row, said in (
        ({"question": "q?", "choices": ["w", "x"], "answer": 2}, "index of one of the 2"),
        ({"question": "q?", "choices": ["w"], "answer": 0}, "list of 2"),
        ({"question": "q?", "choices": ["w", "x"]}, "index of one"),
    ):
        with pytest.raises(UserError, match=said):
            make_task(f"mmlu:path={write(tmp_path / 'd.jsonl', row)}")
    with pytest.raises(UserError, match="easy or challenge"):
        make_task("arc:level=hard")


def test_humaneval_in_its_archive(tmp_path):
    row = {
        "task_id": "HumanEval/0",
        "prompt": 'from typing import List\n\ndef add(x: int, y: int) -> int:\n    """Add."""\n',
        "canonical_solution": "    return x + y\n",
        "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n",
        "entry_point": "add",
    }
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps(row) + "\n")
    task, _ = make_task(f"humaneval:path={tmp_path / 'HumanEval.jsonl.gz'}")
    score = Scorer()
    assert score(task[0], task[0].solution) == 1
    assert score(task[0], "    return x + y\n") == 1
    assert score(task[0], "Here:\n```python\ndef add(x, y):\n    return x - y\n```") == 0
    assert score(task[0], "```\ndef add(x, y):\n    import sys\n    sys.exit(0)\n```") == 0
