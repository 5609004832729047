"""--init-from: the weights of a run or an export, and nothing else of it."""

from __future__ import annotations

import pytest

from danalab.errors import UserError
from danalab.train import train
from danalab.train.run.exchange import export_run
from danalab.train.run.open import open_run
from danalab.train.trainer import run_training


@pytest.fixture
def origin(tiny, tmp_path):
    return train(tiny(arch="gpt", run_dir=tmp_path / "origin", iterations=10))


def first_evaluation(folder):
    return open_run(folder).metrics()[0]["val/loss"]


def start(tiny, tmp_path, source, **given):
    """A run whose first row shows the weights that it began with: the learning rate is next to nothing."""
    settings = {
        "arch": "gpt",
        "run_dir": tmp_path / "run",
        "lr": 1e-30,
        "weight_decay": 0.0,
        "eval_interval": 1,
    }
    return run_training(tiny(**{**settings, "init_from": source, "iterations": 2, **given}))


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["run", "checkpoint", "export"])
def test_a_run_starts_at_step_0_with_the_weights_of_another(tiny, tmp_path, origin, kind):
    source = {
        "run": origin,
        "checkpoint": origin / "checkpoints" / "step-00000010",
        "export": tmp_path / "export",
    }[kind]
    if kind == "export":
        export_run(origin, source)
    outcome = start(tiny, tmp_path, source)
    rows = open_run(outcome.folder).metrics()
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[-1]["optim/t"] == 2
    assert rows[0]["val/loss"] == pytest.approx(open_run(origin).metrics()[-1]["val/loss"], rel=1e-5)


@pytest.mark.slow
def test_a_repeated_command_resumes_its_own_run(tiny, tmp_path, origin):
    start(tiny, tmp_path, origin, iterations_to_run=1)
    assert start(tiny, tmp_path, origin, iterations_to_run=1).summary["step"] == 2


def test_a_model_of_another_shape_is_refused(tiny, tmp_path, origin):
    with pytest.raises(UserError, match="another model"):
        start(tiny, tmp_path, origin, n_layers=1)
    export_run(origin, tmp_path / "export")
    with pytest.raises(UserError, match=r"--init-from .*export: another model"):
        start(tiny, tmp_path, tmp_path / "export", n_layers=1, run_dir=tmp_path / "second")


def test_it_is_not_given_together_with_resume_from(tiny, tmp_path, origin):
    with pytest.raises(UserError, match="leave one of them out"):
        start(tiny, tmp_path, origin, resume_from=origin)


def test_nothing_to_start_from_is_refused(tiny, tmp_path):
    with pytest.raises(UserError, match=r"--init-from .*: neither a checkpoint nor a run folder"):
        start(tiny, tmp_path, tmp_path / "nowhere")


def test_a_model_keeps_its_context_where_it_trains_on_shorter_rows(tiny, tmp_path, origin):
    with pytest.raises(UserError, match=r"has shape \[16, 32\], here"):  # gpt has a vector for each position
        start(tiny, tmp_path, origin, seq_len=8)
    outcome = start(tiny, tmp_path, origin, seq_len=8, context_len=16, run_dir=tmp_path / "second")
    run = open_run(outcome.folder)
    assert run.model_config.seq_len == 16
    assert run.config["tokens_per_step"] == 4 * 8
    assert run.config["params"] == run.load_model().model.num_parameters()
    with pytest.raises(UserError, match="--context-len is 8; it must be at least --seq-len, 16"):
        start(tiny, tmp_path, origin, context_len=8)
