"""Trials of weight decay: what a law does to an optimizer, and the search for its learning rate."""

import math

import pytest
from bench import decay_law
from bench.decay_law import Cell, Results, task

from danalab.optim import build_optimizer


def decay_of(opt: str, law: str) -> dict:
    optimizer = build_optimizer(opt, task("teacher", 64, 0).model, lr=1e-3)
    decay_law.set_decay(optimizer, Cell("teacher", 60, 64, opt, law, 4), 1e-3)
    return optimizer.param_groups[0]


@pytest.mark.parametrize(
    ("opt", "law", "expected"),
    [
        ("adana", "2 lr, 4/t", {"weight_decay": 40 / 60, "wd_ts": 6, "decay_bound": 2.0}),
        ("adana", "none", {"weight_decay": 0.0}),
        ("adamw", "0.5 lr, 4/t", {"weight_decay": 0.5}),
        ("adamw", "none", {"weight_decay": 0.0}),
    ],
)
def test_a_law_is_what_its_name_says(opt, law, expected):
    group = decay_of(opt, law)
    assert {key: group[key] for key in expected} == expected


def test_the_default_of_the_tables_is_what_omega_and_horizon_do():
    theirs = build_optimizer("adana", task("teacher", 64, 0).model, lr=1e-3, omega=4.0, horizon=60)
    group = decay_of("adana", "2 lr, 4/t")
    for key in ("weight_decay", "wd_ts", "decay_bound"):
        assert group[key] == pytest.approx(theirs.param_groups[0][key])


@pytest.mark.sample(1)
@pytest.mark.parametrize("problem", ["transformer", "mlp", "teacher", "recurrent"])
def test_a_few_steps_lower_the_loss_of_every_problem_reproducibly(problem):
    begin = task(problem, 16, 0).measure()
    cell = Cell(problem, 12, 16, "adana", "2 lr, 4/t", 1)
    losses = {decay_law.run(cell, 8e-3, seed) for seed in (0, 0, 1)}
    assert len(losses) == 2
    assert max(losses) < begin - 0.1


def test_an_interrupted_search_goes_on_and_ends_between_two_rates(tmp_path, monkeypatch):
    cell = Cell("teacher", 20, 64, "adana", "none", 2)
    made = []
    monkeypatch.setattr(
        decay_law, "run", lambda cell, lr, seed: made.append((lr, seed)) or (math.log(lr / 0.03)) ** 2
    )
    file = tmp_path / "rows.jsonl"
    assert Results(file).tune(cell, 2e-3) == pytest.approx(0.032)
    assert {lr for lr, _ in made} >= {0.016, 0.032, 0.064}
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-2]) + "\n")
    made.clear()
    again = Results(file)
    assert again.tune(cell, 2e-3) == pytest.approx(0.032)
    assert made == [(0.032, 1), (0.032, 2)]
    assert again.best(cell)[0] == 0.032
