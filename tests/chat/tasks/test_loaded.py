"""Data sets of tasks from local files; malformed ones name the line."""

import json
import re

import pytest

from danalab.chat.rewards import Scorer
from danalab.chat.tasks import make_task
from danalab.errors import UserError


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_problems_of_ones_own(tmp_path):
    file = write(
        tmp_path / "mine.jsonl",
        {"question": "Capital of France?", "answer": "Paris"},
        {"question": "2 + 2?", "choices": ["3", "4"], "answer": "B", "system": "Be short."},
        {"question": "6 * 7?", "answer": 42, "reward": "number", "solution": "6 * 7 = 42"},
    )
    task, _ = make_task(str(file))
    score = Scorer()
    assert len(task) == 3
    assert score(task[0], " paris ") == 1
    assert task[1].prompt().messages[0].text == "Be short."
    assert "A. 3\nB. 4" in task[1].question
    assert (score(task[1], "The answer is B."), score(task[1], "A")) == (1, 0)
    assert score(task[2], "It is 42.0") == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"question": "q"}', 'line 1: the field "answer" is missing'),
        (
            '{"question": "q", "answer": "a"}\n{"question": "q", "answer": ""}',
            'line 2: the field "answer" is empty',
        ),
        ('{"question": "q", "answer": ["a"]}', '"answer" is not text'),
        ('{"question": "q", "answer": "a", "tests": 1}', 'unknown field "tests"'),
        ('{"question": "q", "answer": "C", "choices": ["x", "y"]}', "not one of the letters A, B"),
        ('{"question": "q", "answer": "A", "choices": "xy"}', "list of 2"),
        ('{"question": ', "line 1: not valid JSON"),
        ("[1]", "line 1: an object is expected"),
        ("[" * 100_000, "not valid JSON"),
        ("", "no problems"),
    ],
)
def test_a_malformed_file_is_one_line_with_the_place(tmp_path, lines, said):
    (tmp_path / "bad.jsonl").write_text(lines)
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        make_task(str(tmp_path / "bad.jsonl"))
    assert "bad.jsonl" in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        make_task(str(tmp_path / "none.jsonl"))
    (tmp_path / "bad.jsonl.gz").write_bytes(b"\x1f\x8b but no archive")
    with pytest.raises(UserError, match=r"bad\.jsonl\.gz"):
        make_task(str(tmp_path / "bad.jsonl.gz"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9"}')
    with pytest.raises(UserError, match="not UTF-8"):
        make_task(str(tmp_path / "latin.jsonl"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \.jsonl"):
        make_task(f"gsm8k:path={tmp_path / 'empty'}")


def test_parquet_files(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"question": ["q?"], "answer": ["#### 3"]}), tmp_path / "train-0.parquet")
    assert make_task(f"gsm8k:path={tmp_path}")[0][0].answer == "3"
    (tmp_path / "train-0.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match="not a readable parquet file"):
        make_task(f"gsm8k:path={tmp_path}")
