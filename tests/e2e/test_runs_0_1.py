"""Runs that version 0.1 wrote open, evaluate and resume, on as many ranks and on another number."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from danalab.train.config.train_config import TrainConfig
from danalab.train.evaluation import evaluate_run
from danalab.train.job import run_training
from danalab.train.run.metrics import read_rows
from danalab.train.run.open import open_run
from distributed.ranks import run_ranks

FIXTURES = Path(__file__).parents[1] / "fixtures" / "runs_0_1"
REACHED = ("train/loss", "val/loss", "grad_norm", "lr")


@pytest.fixture
def copy(tmp_path: Path):
    """Copy a run; returns its folder and the configuration that resumes it."""

    def make(name: str, **given: object) -> tuple[Path, TrainConfig]:
        folder = Path(shutil.copytree(FIXTURES / name, tmp_path / name))
        saved = {**open_run(folder).config["config"], "data": str(FIXTURES / "data"), "run_dir": str(folder)}
        return folder, TrainConfig(**{**saved, "tune_malloc": False, **given})

    return make


def train(rank: int, size: int, config: TrainConfig) -> tuple[str, int]:
    outcome = run_training(config)
    return outcome.status, outcome.exit_code


def check_reached(folder: Path, name: str) -> None:
    """The rows and the summary are those of version 0.1."""
    rows, expected = read_rows(folder / "metrics.jsonl"), read_rows(FIXTURES / name / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 5, 10, 15, 20]
    for row, then in zip(rows, expected, strict=True):
        assert {key: row.get(key) for key in REACHED} == pytest.approx({k: then.get(k) for k in REACHED}, abs=1e-4)
    summary, then = open_run(folder).summary, open_run(FIXTURES / name).summary
    assert summary is not None
    assert then is not None
    assert summary["status"] == "finished"
    assert summary["val/loss"] == pytest.approx(then["val/loss"], abs=1e-4)
    found = evaluate_run(folder, data=FIXTURES / "data")
    assert (found.step, found.tokens) == (20, then["val/tokens"])
    assert found.loss == pytest.approx(then["val/loss"], abs=1e-4)


@pytest.mark.parametrize("name", ["single", "zero"])
def test_a_run_of_0_1_opens_and_is_evaluated_where_it_is(name):
    run = open_run(FIXTURES / name)
    assert run.load_model().step == 10
    assert run.tokenizer.decode(run.tokenizer.encode("the cat")) == "the cat"
    at_10 = next(row for row in run.metrics() if row["step"] == 10)
    # The row's loss is of 128 of the 189 windows.
    assert evaluate_run(FIXTURES / name, data=FIXTURES / "data").loss == pytest.approx(at_10["val/loss"], abs=0.01)


@pytest.mark.parametrize("automatic", [(), ("warmup_steps", "weight_decay", "wd_ts", "decay_bound")], ids=["", "auto"])
def test_a_run_of_0_1_resumes_to_the_losses_that_0_1_reached(copy, automatic):
    folder, config = copy("single", **dict.fromkeys(automatic))
    assert run_training(config).status == "finished"
    check_reached(folder, "single")


@pytest.mark.slow
def test_a_run_of_0_1_with_zero_resumes_on_two_ranks(copy):
    folder, config = copy("zero")
    assert run_ranks(train, 2, config) == [("finished", 0)] * 2
    check_reached(folder, "zero")


def test_a_run_of_0_1_with_zero_resumes_on_one_rank(copy):
    folder, config = copy("zero", distributed_backend="single", acc_steps=2)
    assert run_training(config).status == "finished"
    check_reached(folder, "zero")
