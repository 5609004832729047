"""Rewards: what counts as right; functions of one's own that misbehave end in one line."""

import json
import os
import re
import socket
import subprocess
import sys
import threading

import pytest

from danalab.chat import rewards
from danalab.chat.rewards import PROCESS, REWARDS, Scorer
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


WRITE_EVERYWHERE = """
def write_everywhere(text):
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, text)
        except OSError:
            pass
    return 1.0
"""


def own(tmp_path, body, name="reward"):
    file = tmp_path / "mine.py"
    file.write_text(f"import math, os, sys, time\n\ndef {name}(problem, answer):\n    {body}\n{WRITE_EVERYWHERE}")
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
        ("return input()", "EOFError"),
        ("print('=1.0', flush=True); raise KeyError('gone')", "KeyError (line 4): 'gone'"),
        ("os.closerange(3, 100)", "ended with status 1"),
        ("os.fork() and os._exit(7); time.sleep(60)", "ended with status 7"),
        ("os.fork() and os.kill(os.getpid(), 9); os.setsid(); time.sleep(60)", "ended with status 137"),
        ("write_everywhere(b'=1.0\\n')", "mine.py: it wrote '=1.0"),
        ("write_everywhere(b'1' * (1 << 21))", "mine.py: it wrote '111"),
    ],
)
def test_a_function_that_raises_hangs_or_gives_no_number_ends_in_one_line(tmp_path, body, said):
    score = Scorer(own(tmp_path, body), seconds=0.5 if "0.5 s" in said else 30.0)
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
    monkeypatch.setattr(rewards, "available_cores", lambda: 2)
    meeting = threading.Barrier(2, timeout=20)
    REWARDS.add("test-meets", lambda problem, answer: meeting.wait() * 0 + float(answer))
    assert Scorer("test-meets").score_all((PROBLEM, str(i)) for i in range(6)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="reward test-meets: ValueError"):
        Scorer("test-meets").score_all([(PROBLEM, "1"), (PROBLEM, "one")])


def test_a_function_of_ones_own_takes_one_answer_at_a_time(tmp_path):
    score = Scorer(own(tmp_path, "return len(answer)"))
    assert score.score_all((PROBLEM, "x" * i) for i in range(20)) == list(range(20))


def test_a_file_imports_its_neighbour_and_not_ours(tmp_path):
    (tmp_path / "answers.py").write_text("BONUS = 2.5")  # the package has a file of this name, too
    (tmp_path / "json.py").write_text("import json, answers\n\ndef reward(problem, answer): return answers.BONUS")
    assert Scorer(str(tmp_path / "json.py"))(PROBLEM, "2") == 2.5


START = "import multiprocessing, os, subprocess, sys, time\nfrom concurrent.futures import ProcessPoolExecutor\n"
CHILDREN = {
    "pool": """
def measure(answer):
    return os.getpid()

pool = ProcessPoolExecutor(1, multiprocessing.get_context(METHOD))

def start(answer):
    return pool.submit(measure, answer).result()
""",
    "fork": """
def start(answer):
    child = os.fork()
    if child == 0:
        if sys.platform == "linux":
            open("/proc/self/comm", "wb").write(b"a) \\xff (")
        time.sleep(600)
    return child
""",
    "program": """
def start(answer):
    return subprocess.Popen(["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 600; done"]).pid
""",
    "daemon": """
def start(answer):
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writes, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    return int(os.read(reads, 20))
""",
}
CHILDREN["spawned pool"] = CHILDREN["pool"].replace("METHOD", "'spawn'")
CHILDREN["pool"] = CHILDREN["pool"].replace("METHOD", "'fork'")


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.sample(7)
@pytest.mark.parametrize("start", CHILDREN.values(), ids=CHILDREN)
@pytest.mark.parametrize("end", ["closed", "raises", "hangs"])
def test_processes_of_a_function_end_with_it(tmp_path, start, end):
    """However it ends; their number is the first value."""
    then = {"closed": "child", "raises": "child if answer else 1 / 0", "hangs": "child if answer else time.sleep(600)"}
    reward = f"\ndef reward(problem, answer):\n    child = start(answer)\n    return {then[end]}\n"
    (tmp_path / "mine.py").write_text(START + start + reward)
    score = rewards.UserReward(str(tmp_path / "mine.py"))
    child = int(score(PROBLEM, "2"))
    assert is_running(child)
    score._seconds = 0.5 if end == "hangs" else 30.0
    if end == "closed":
        score.close()
    else:
        with pytest.raises(UserError, match="ZeroDivisionError" if end == "raises" else "no result after 0.5 s"):
            score(PROBLEM, "")
    assert not is_running(child)


def test_a_fork_that_returns_answers_no_question(tmp_path):
    score = Scorer(own(tmp_path, "return 100.0 if os.fork() == 0 else os.wait()[0] * 0 + float(answer)"))
    assert [score(PROBLEM, str(n)) for n in range(4)] == [0, 1, 2, 3]


def test_a_question_that_a_busy_process_does_not_read_ends_in_one_line(tmp_path):
    """A connection holds some 100 KB: a longer question waits for its reader."""
    body = "import signal, threading; threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGSTOP)).start()"
    score = Scorer(own(tmp_path, f"{body}; return 1"), seconds=1)
    with pytest.raises(UserError, match="no result after 1 s"):
        score.score_all([(PROBLEM, "x" * (3 << 20))] * 3)


@pytest.mark.skipif(sys.platform != "linux", reason="others tell no end of a socket")
def test_a_function_and_its_processes_end_with_the_program_that_called_it(tmp_path):
    """A killed trainer closes nothing: the kernel closes its end of the connection."""
    body = "\ndef reward(problem, answer):\n    return start(answer)\n"
    (tmp_path / "mine.py").write_text(START + CHILDREN["daemon"] + body)
    task = json.dumps({"path": str(tmp_path / "mine.py"), "function": "reward"})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen([sys.executable, str(PROCESS), task], stdin=theirs, stdout=theirs)
        theirs.close()
        ours.sendall(b"t ({}, ''), {}\n")
        lines = ours.makefile()
        assert lines.readline() == "=None\n"
        child = int(float(lines.readline().removeprefix("t=")))
        assert is_running(child)
        lines.close()
    process.wait()
    assert not is_running(child)
