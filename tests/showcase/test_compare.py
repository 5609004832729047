"""`danalab optim compare`: problems are the same for all, the search is fair, and everything is drawn and written."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from danalab.cli.app import main
from danalab.cli.optim_more import CompareConfig
from danalab.colors import optimizer_color
from danalab.errors import UserError
from danalab.optim import optimizer_spec
from danalab.scaling import learning_rate
from danalab.scaling.rate_search import next_exponent
from danalab.showcase import compare
from danalab.showcase.compare import compare_optimizers, curves_figure, orthogonalisation_figure
from danalab.showcase.problems import PROBLEMS, Objective, SmallProblem, get_problem
from danalab.showcase.trials import SPACING, ProblemRun, Result, search, settings_for, train, usual_lr


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_a_problem_is_the_same_for_every_optimizer(name):
    first, second = (get_problem(name).make(3) for _ in range(2))
    assert first.measure() == second.measure()
    assert [first.loss().item() for _ in range(2)] == [second.loss().item() for _ in range(2)]
    assert get_problem(name).make(4).measure() != first.measure() or name == "quadratic"


def test_the_quadratics_measure_is_zero_at_its_optimum_and_the_loss_its_expectation():
    task = get_problem("quadratic").make(0)
    start = task.measure()
    mean = sum(task.loss().item() for _ in range(400)) / 400
    assert mean == pytest.approx(start, rel=0.2)
    assert start > 0.1


def test_the_matrixs_measure_is_the_expectation_of_its_loss():
    task = get_problem("matrix").make(0)
    assert sum(task.loss().item() for _ in range(200)) / 200 == pytest.approx(task.measure(), rel=0.1)


def bowl(best: float) -> SmallProblem:
    """A run's last measurement is the squared distance of log4(lr) from `best`, by a model that notes its lr."""

    def make(seed: int) -> Objective:
        model = torch.nn.Linear(1, 1, bias=False)
        moved = model.weight.detach().clone()

        def measure() -> float:
            distance = float((model.weight.detach() - moved).abs())
            return 1.0 + (math.log(distance, SPACING) - best) ** 2 if distance else 100.0

        return Objective(model, lambda: model.weight.sum(), measure)

    return SmallProblem("bowl", "", "", 1, 0.0, True, make)


@pytest.mark.parametrize("best", [-6.3, -5.0, -3.6, -1.2])
def test_the_search_finds_the_best_learning_rate_within_its_trials(best):
    result = search(bowl(best), "adamw", trials=7)
    assert len(result.trials) == 7
    assert len({run.lr for run in result.trials}) == 7
    assert math.log(result.best[0].lr, SPACING) == pytest.approx(best, abs=0.5)


def test_the_search_extends_at_an_edge_and_halves_between_neighbours():
    assert next_exponent({}) == 0
    assert next_exponent({0: 1.0}) == 1
    assert next_exponent({0: 1.0, 1: 2.0}) == -1
    assert next_exponent({0: 1.0, 1: 2.0, -1: 1.5}) == -0.5
    assert next_exponent({0: 1.0, 1: 2.0, -1: 1.5, -0.5: 1.2}) == -0.25
    assert next_exponent({0: math.inf}) == -1


def test_an_optimizer_that_always_diverges_is_named():
    def make(seed: int) -> Objective:
        model = torch.nn.Linear(1, 1, bias=False)
        return Objective(model, lambda: model.weight.sum(), lambda: math.nan)

    with pytest.raises(UserError, match="adamw diverges on 'cliff'"):
        search(SmallProblem("cliff", "", "", 2, 0.0, True, make), "adamw", trials=2)


def test_weight_decay_is_by_the_ladders_rule():
    assert settings_for(optimizer_spec("adana"), 100, 4.0) == {"omega": 4.0, "horizon": 100}
    assert settings_for(optimizer_spec("adamw"), 100, 4.0) == {"omega": 4.0, "horizon": 100}
    assert settings_for(optimizer_spec("adamw"), 100, 0.0) == {}
    assert settings_for(optimizer_spec("ademamix"), 100, 0.0)["betas"] == (0.9, 0.999, 0.92)


@pytest.mark.parametrize("opt", ["adana", "muon", "normuon", "kl-soap", "soap", "lion", "prodigy"])
def test_the_search_starts_at_the_optimizers_rate_for_a_model_of_that_size(opt):
    size = {"quadratic": 150, "matrix": 96 * 96}
    for name, params in size.items():
        first = search(replace(get_problem(name), steps=1), opt, trials=1).trials[0]
        assert first.lr == learning_rate("enoki", opt, params)


@pytest.mark.slow
@pytest.mark.parametrize("opt", ["adamw", "adana", "muon", "normuon", "kl-soap"])
def test_the_best_of_six_rates_lies_between_others(opt):
    tried = search(get_problem("matrix"), opt, trials=6)
    rates = sorted(run.lr for run in tried.trials)
    assert 1 <= rates.index(tried.best[0].lr) <= 4
    assert rates[rates.index(tried.best[0].lr) + 1] / tried.best[0].lr < SPACING  # and was refined


def test_a_run_measures_along_its_way_and_at_its_end():
    run = train(get_problem("matrix", quick=True), optimizer_spec("adana"), 1e-2, 0, {})
    assert run.steps[0] == 0
    assert run.steps[-1] == 30
    assert run.loss == run.losses[-1] < run.losses[0]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison, and the lines that it said; the matrix starts at zero, which Hyperball keeps."""
    out, said = tmp_path_factory.mktemp("compare"), []
    config = CompareConfig(
        out=out, opts=("adamw", "ADANA", "muon", "muon-h"), problems=("matrix",), trials=1, quick=True, jobs=1
    )
    return compare_optimizers(config, said.append), said


def test_everything_is_drawn_and_written(compared):
    compared, _ = compared
    assert {file.name for file in compared.files} == {
        *(f"{stem}.{kind}" for stem in ("problems", "lr", "newton-schulz") for kind in ("png", "svg", "pdf")),
        *("table.md", "index.html", "compare.json"),
    }
    assert all(file.stat().st_size > 0 for file in compared.files)
    page = next(file for file in compared.files if file.name == "index.html").read_text()
    assert "too short to judge by" in page
    file = next(file for file in compared.files if file.name == "compare.json")
    assert json.loads(file.read_text()) == json.loads(json.dumps(compared.as_dict()))


def test_an_optimizer_has_its_colour_and_its_learning_rate_in_the_legend(compared):
    compared, _ = compared
    axes = curves_figure(compared.problems, compared.results).axes[0]
    lines = {line.get_label().split(",")[0]: line for line in axes.lines}
    assert {name: line.get_color() for name, line in lines.items()} == {
        name: optimizer_color(name) for name in ("adamw", "adana", "muon")
    }
    assert all("lr " in line.get_label() for line in lines.values())


def test_no_final_loss_is_outside_of_the_panel():
    runs = {
        opt: ProblemRun(opt, 1e-3, 0, losses[-1], tuple(range(len(losses))), losses, 1.0)
        for opt, losses in (("adamw", (6.0, 2.0, 1.0)), ("sgd", (6.0, 5.8, 5.5)))
    }
    results = [Result("language", opt, (run,), (run,)) for opt, run in runs.items()]
    low, high = curves_figure([get_problem("language")], results).axes[0].get_ylim()
    assert low < 1.0 < 5.5 < high


def test_orthogonalisation_brings_singular_values_to_one():
    for axes in orthogonalisation_figure().axes:
        last = next(line for line in axes.lines if line.get_label() == "after step 5")
        assert all(0.6 < value < 1.25 for value in list(last.get_ydata())[:50])


@pytest.mark.parametrize("flags", [["--json"], pytest.param([], marks=pytest.mark.slow)])
def test_the_command_prints_one_json_object_or_a_table(tmp_path, capsys, monkeypatch, flags):
    monkeypatch.setattr(compare, "save_figure", lambda *_: [])
    arguments = ["--problems", "matrix", "--opts", "adamw", "ADANA", "--quick", "--jobs", "1", "--trials", "1"]
    assert main(["optim", "compare", *arguments, *flags, "--out", str(tmp_path / "c")]) == 0
    printed = capsys.readouterr().out
    if flags:
        found = json.loads(printed)
        assert [row["optimizer"] for row in found["results"]] == ["adamw", "adana"]
        assert found == json.loads((tmp_path / "c" / "compare.json").read_text())
    else:
        assert "best lr" in printed.splitlines()[1]
        assert printed.splitlines()[-1] == f"page: {tmp_path / 'c' / 'index.html'}"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--opts", "adanna"], "did you mean 'adana'"),
        (["--problems", "matrices"], "did you mean 'matrix'"),
        (["--trials", "0"], "--trials 0: must be at least 1"),
        (["--opts", "sophia"], "its step needs more than gradients"),
    ],
)
def test_bad_input_is_one_line(arguments, complaint, tmp_path, capsys):
    quick = ["--quick", "--jobs", "1", "--out", str(tmp_path)]
    given = arguments if "--problems" in arguments else [*arguments, "--problems", "matrix"]
    assert main(["optim", "compare", *quick, *given]) == 2
    assert complaint in capsys.readouterr().err


def test_an_optimizer_that_cannot_take_part_is_left_out_and_named(compared):
    compared, said = compared
    assert [result.opt for result in compared.results] == ["adamw", "adana", "muon"]
    assert "is zero" in compared.refused["muon-h on matrix"]
    page = next(file for file in compared.files if file.name == "index.html")
    assert "Left out: muon-h on matrix" in page.read_text()
    assert any("muon-h" in line and "left out" in line for line in said)


@pytest.mark.slow
def test_searches_run_in_processes_beside_each_other(tmp_path):
    config = CompareConfig(out=tmp_path, opts=("adamw", "adana"), problems=("matrix",), trials=2, quick=True, jobs=2)
    assert len(compare_optimizers(config).results) == 2


@pytest.mark.parametrize("opt", ["sgd", "sf-adamw", "prodigy", "soap", "snoo-dana", "dana"])
def test_optimizers_of_every_kind_take_part(opt):
    quick, spec = get_problem("matrix", quick=True), optimizer_spec(opt)
    run = train(quick, spec, usual_lr(spec, quick), 0, {})
    assert math.isfinite(run.loss)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["optim", "compare", "--out", str(tmp_path / "file" / "under")]) == 2
    (line,) = capsys.readouterr().err.splitlines()  # and no line of a search
    assert line.endswith("Not a directory")
