"""Rewards: what counts as right; functions of one's own that misbehave end in one line."""

import re
import threading

import pytest

from danalab.chat import rewards
from danalab.chat.rewards import Scorer
from danalab.chat.tasks import Problem
from danalab.errors import UserError


@pytest.mark.parametrize(
    ("reward", "reference", "answer", "score"),
    [
        ("exact", "b a n", " B  a n\n", 1),
        ("exact", "b a n", "ban", 0),
        ("number", "19", "12 + 7 = 19", 1),
        ("number", "19", "19 or 20", 0),
        ("number", "1000", "#### 1,000 dollars", 1),
        ("number", "-3", "it is -3.", 1),
        ("number", "0.5", "#### .5", 1),
        ("number", "3", "none", 0),
        ("number", "3", "9" * 1000, 0),
        ("choice", "B", "B", 1),
        ("choice", "B", "The answer is (B).", 1),
        ("choice", "B", "A or rather B", 1),
        ("choice", "B", "Because", 0),
        ("choice", "A", "I'd say C", 0),
        ("choice", "B", "", 0),
    ],
)
def test_what_counts_as_right(reward, reference, answer, score):
    problem = Problem("q", reference, reward, choices=tuple("ABCD"))
    assert Scorer()(problem, answer) == score


PROBLEM = Problem("What is 1 + 1?", "2", "number", data={"hint": 3})


def own(tmp_path, body, name="reward"):
    file = tmp_path / "mine.py"
    file.write_text(f"import math\n\ndef {name}(problem, answer):\n    {body}\n")
    return str(file)


def test_a_function_of_ones_own(tmp_path):
    score = Scorer(own(tmp_path, "return (answer == problem['answer']) / 2 + problem['data']['hint']"))
    assert [score(PROBLEM, "2"), score(PROBLEM, "3\n")] == [3.5, 3.0]
    (tmp_path / "other.py").write_text("def length(problem, answer): return len(answer)")
    named = Scorer(f"{tmp_path / 'other.py'}:length")
    assert named.score_all((PROBLEM, "x" * i) for i in range(20)) == list(range(20))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return float('nan')", "returned nan"),
        ("return math.inf", "returned inf"),
        ("return None", "TypeError"),
        ("raise KeyError('gone')", "KeyError: 'gone'"),
        ("return 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_function_that_raises_or_gives_no_number_ends_in_one_line(tmp_path, body, said):
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        Scorer(own(tmp_path, body))(PROBLEM, "2")
    assert "mine.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_without_the_function_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such Python file"):
        Scorer("absent.py")
    with pytest.raises(UserError, match="there is no 'other'"):
        Scorer(own(tmp_path, "return 1") + ":other")
    (tmp_path / "broken.py").write_text("def reward(:")
    with pytest.raises(UserError, match="SyntaxError"):
        Scorer(str(tmp_path / "broken.py"))
    with pytest.raises(UserError, match="did you mean 'number'"):
        Scorer("numbr")


def test_answers_are_scored_side_by_side_and_in_order(monkeypatch):
    """Each call waits for another one: one after the other they would never end."""
    monkeypatch.setattr(rewards, "available_cores", lambda: 2)
    meeting = threading.Barrier(2, timeout=20)
    monkeypatch.setitem(rewards.REWARDS, "meets", lambda problem, answer: meeting.wait() * 0 + float(answer))
    assert Scorer("meets").score_all((PROBLEM, str(i)) for i in range(6)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="reward meets: ValueError"):
        Scorer("meets").score_all([(PROBLEM, "1"), (PROBLEM, "one")])
