"""Rewards: what counts as right; functions of one's own that misbehave end in one line."""

import re
import threading

import pytest

from danalab.chat.rewards import REWARDS, Scorer, named
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
    file.write_text(f"import math, os, sys, time\n\ndef {name}(problem, answer):\n    {body}\n")
    return str(file)


def test_a_function_of_ones_own(tmp_path):
    score = Scorer(own(tmp_path, "print('x'); return (answer == problem['answer']) / 2 + problem['data']['hint']"))
    assert [score(PROBLEM, "2"), score(PROBLEM, "3\n")] == [3.5, 3.0]
    named = Scorer(own(tmp_path, "return len(answer)", "length") + ":length")
    assert named(PROBLEM, "four") == 4.0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return float('nan')", "returned nan"),
        ("return math.inf", "returned inf"),
        ("return None", "TypeError"),
        ("raise KeyError('gone')", "KeyError (line 4): 'gone'"),
        ("time.sleep(60)", "no result after 0.5 s"),
        ("__import__('re').match(r'(a+)+$', 'a' * 40 + 'b')", "no result after 0.5 s"),
        ("os._exit(7)", "ended with status 7"),
        ("sys.exit()", "SystemExit"),
    ],
)
def test_a_function_that_raises_hangs_or_gives_no_number_ends_in_one_line(tmp_path, body, said):
    score = Scorer(own(tmp_path, body), seconds=0.5)
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        score(PROBLEM, "2")
    assert "mine.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_without_the_function_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        Scorer("absent.py")
    with pytest.raises(UserError, match="no function 'other'"):
        Scorer(own(tmp_path, "return 1") + ":other")(PROBLEM, "2")
    (tmp_path / "broken.py").write_text("def reward(:")
    with pytest.raises(UserError, match="SyntaxError"):
        Scorer(str(tmp_path / "broken.py"))(PROBLEM, "2")
    with pytest.raises(UserError, match="did you mean 'number'"):
        Scorer("numbr")


def test_a_registered_reward_that_raises_or_gives_nan_ends_in_one_line():
    REWARDS.add("test-raises", lambda problem, answer: 1 / 0)
    REWARDS.add("test-nan", lambda problem, answer: float("nan"))
    with pytest.raises(UserError, match="reward test-raises: ZeroDivisionError"):
        Scorer("test-raises")(PROBLEM, "2")
    with pytest.raises(UserError, match="reward test-nan: returned nan"):
        Scorer("test-nan")(PROBLEM, "2")


def test_answers_are_scored_side_by_side_and_in_order(monkeypatch):
    """Each call waits for another one: one after the other they would never end."""
    monkeypatch.setattr(named, "available_cores", lambda: 2)
    meeting = threading.Barrier(2, timeout=20)
    REWARDS.add("test-meets", lambda problem, answer: meeting.wait() * 0 + float(answer))
    assert Scorer("test-meets").score_all((PROBLEM, str(i)) for i in range(6)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="reward test-meets: ValueError"):
        Scorer("test-meets").score_all([(PROBLEM, "1"), (PROBLEM, "one")])


def test_a_function_of_ones_own_takes_one_answer_at_a_time(tmp_path):
    score = Scorer(own(tmp_path, "return len(answer)"))
    assert score.score_all((PROBLEM, "x" * i) for i in range(20)) == list(range(20))
