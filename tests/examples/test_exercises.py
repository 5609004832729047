"""The solutions of the guide's exercises do what the exercises ask, and a wrong one is told so."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from danalab.chat.tasks import make_task
from danalab.errors import UserError

FOLDER = Path(__file__).parents[2] / "examples" / "exercises"
check = runpy.run_path(str(FOLDER / "check.py"))["check"]
SOLUTIONS = {"log_lion": "LogLion", "vision_transformer": "VisionTransformer", "sorting_task": "Sorting"}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_solution_is_right(name):
    assert check(FOLDER / f"{name}.py") == [SOLUTIONS[name]]


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("log_lion", "gain * (g - m)", "0.1 * (g - m)", "step 2: wrong average"),
        (
            "log_lion",
            "p - lr * step",
            "p + lr * step",
            r"wrong direction: .*\[1\.551, .*\[1\.531, .*up to 2\.0e-02",
        ),
        ("log_lion", "decay_factor * (p - lr * step)", "decay_factor * p - lr * step", "step 1: wrong decay"),
        ("vision_transformer", '"embedding"', '"matrix"', "must be embeddings"),
        ("sorting_task", "sorted(", "list(", "not sorted"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(name, old, new, what, tmp_path):
    text = (FOLDER / f"{name}.py").read_text()
    assert old in text
    (tmp_path / "mine.py").write_text(text.replace(old, new))
    with pytest.raises(AssertionError, match=what):
        check(tmp_path / "mine.py")


def test_a_file_that_is_no_python_gets_a_line(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def f(:\n")
    monkeypatch.setattr(sys, "argv", ["check.py", str(tmp_path / "mine.py")])
    with pytest.raises(SystemExit) as ended:  # with a text, which Python prints, and exit code 1
        runpy.run_path(str(FOLDER / "check.py"), run_name="__main__")
    assert ended.value.code == "wrong: SyntaxError: invalid syntax (mine.py, line 1)"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lr"), [("adamw", 3e-3), ("muon", 0.02), ("manau", 3e-3)])
def test_the_vision_transformer_sees_orientations(name, lr):
    vision = runpy.run_path(str(FOLDER / "vision_transformer.py"))
    model, losses = vision["train"](name, lr)
    assert losses[-1] < 0.3 < losses[0]
    assert vision["accuracy"](model) > 0.9


def test_a_task_refuses_settings_out_of_range_and_reads_its_weight():
    address = f"{FOLDER / 'sorting_task.py'}:Sorting"
    assert make_task(f"{address}:letters=4,weight=2")[1] == 2
    with pytest.raises(UserError, match="letters 1: must be 2 to 26"):
        make_task(f"{address}:letters=1")
