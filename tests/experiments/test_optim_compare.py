"""Optimizers on small problems: equal searches, a table, pictures."""

import json

import pytest

from danalab.cli.app import main
from danalab.experiments.problems import PROBLEMS, get_problem
from danalab.experiments.trials import search, train


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda problem: problem.name)
def test_equal_seeds_are_equal_problems(problem):
    first, second = problem.make(3), problem.make(3)
    assert first.measure() == second.measure()
    assert float(first.loss().detach()) == float(second.loss().detach())
    assert first.measure() != problem.make(4).measure() or problem.name == "images"


def test_a_search_follows_the_rate_and_repeats_the_best():
    found = search(get_problem("matrix", 30), "adamw", trials=4, seeds=2)
    assert len(found.trials) == 4
    assert found.best[0] in found.trials
    assert [run.seed for run in found.best] == [0, 1]
    assert found.best[0].loss == min(run.loss for run in found.trials)
    assert found.best[0].losses[-1] < found.best[0].losses[0]


def test_a_run_that_diverges_ends_early():
    run = train(get_problem("quadratic", 200), "sgd", 1e9, 0, {})
    assert run.loss == float("inf")


@pytest.mark.slow
def test_the_page_has_a_line_for_each_and_says_what_is_left_out(tmp_path, capsys):
    words = [
        "--quick",
        "--opts",
        "adamw",
        "muon",
        "--problems",
        "matrix",
        "--out",
        str(tmp_path),
        "--jobs",
        "1",
    ]
    assert main(["optim", "compare", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["optimizer"] for row in told["results"]} == {"adamw", "muon"}
    assert (tmp_path / "report.md").read_text().count("| matrix |") == 2
    assert (tmp_path / "problems-dark.svg").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--problems", "matrx"], "did you mean 'matrix'"), (["--opts"], "at least one optimizer")],
)
def test_what_cannot_be_compared_is_refused(words, message, tmp_path, capsys):
    assert main(["optim", "compare", "--quick", *words, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
