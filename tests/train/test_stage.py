"""A stage of one's own: its batches, loss and evaluators are all that the trainer needs."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from danalab.data import open_dataset
from danalab.models import build_model
from danalab.train.checkpoint import tensors
from danalab.train.config.resolve import resolve
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.run.resume import ResumePoint
from danalab.train.stage import BatchSource, Consumption, Stage
from danalab.train.step.loss import CrossEntropy, Loss, LossTerms, TrainingBatch
from danalab.train.trainer import Trainer


class OnPolicy(BatchSource):
    """Batches that depend on the model as it is, and on a counter of its own."""

    def __init__(self):
        self.model, self.made, self.seen = None, 0, []

    def attach(self, model):
        self.model = model

    def batch(self, step):
        self.made += 1
        self.seen.append(float(next(self.model.parameters()).detach().sum()))
        tokens = torch.full((4, 16), self.made % 50)
        return TrainingBatch(tokens, tokens, extra={"advantage": torch.ones(4)})

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]


class PolicyGradient(Loss):
    metrics = ("advantage",)

    def denominators(self, batch):
        return [float(len(batch))]

    def __call__(self, model, part, totals):
        log_p = model(part.inputs).log_softmax(-1).mean((1, 2))
        advantage = part.extra["advantage"]
        loss = -(advantage * log_p).sum() / totals[0]
        return LossTerms(loss, loss.detach(), {"advantage": advantage.sum() / totals[0]})


class Constant:
    """An evaluator."""

    def evaluate(self, model, step, should_stop, *, final):
        return {"reward": 0.5 + final}


def make(tiny, source, evaluators=(), **given):
    def stage(*_):
        return Stage(source, PolicyGradient(), Consumption(lambda s: 64 * s, float), evaluators)

    config = tiny(**{"iterations": 8, "log_interval": 1, "eval_interval": 4, "ckpt_interval": 0, **given})
    dataset = open_dataset(config.data)
    spec = resolve(config, dataset)
    spec.run_dir.mkdir(exist_ok=True)
    return Trainer(spec, dataset, RunFolder(spec.run_dir), make_stage=stage)


def test_an_on_policy_source_sees_every_update_and_its_state_is_part_of_checkpoints(tiny, tmp_path):
    source = OnPolicy()
    trainer = make(tiny, source, iterations_to_run=3)
    assert trainer.fit() == "stopped"
    assert source.made == 3
    assert len(set(source.seen)) == 3  # each batch was made after the update before it
    assert trainer._meta()["batches"] == {"made": 3}
    again = OnPolicy()
    resumed = make(tiny, again, run_dir=tmp_path / "other")
    resumed._restore(trainer._meta())
    assert resumed.fit() == "finished"
    assert again.made == 8


class Sparse(BatchSource):
    """Batches of which each second one has no target."""

    def batch(self, step):
        tokens = torch.full((4, 16), step % 50)
        return TrainingBatch(tokens, tokens if step % 2 else torch.full_like(tokens, -1))


def test_a_batch_without_any_target_makes_no_update(tiny):
    def stage(*_):
        return Stage(Sparse(), CrossEntropy(1e-4), Consumption(lambda s: 64 * s, float))

    config = tiny(iterations=6, log_interval=1, ckpt_interval=0, opt="adamw", weight_decay=0.1)
    dataset = open_dataset(config.data)
    spec = resolve(config, dataset)
    spec.run_dir.mkdir(exist_ok=True)
    trainer = Trainer(spec, dataset, RunFolder(spec.run_dir), make_stage=stage)
    assert trainer.fit() == "finished"
    rows = read_rows(trainer.logbook.metrics_file)
    assert [row["update_norm"] == 0 for row in rows] == [True, False] * 3
    assert [row["train/loss"] == 0 for row in rows] == [True, False] * 3
    assert {float(state["step"]) for state in trainer.driver.optimizer.state.values()} == {3.0}
    assert trainer.guard.skipped == 0


def test_a_stage_without_evaluators_trains_to_its_end_without_validation(tiny):
    trainer = make(tiny, OnPolicy())
    assert trainer.fit() == "finished"
    rows = read_rows(trainer.logbook.metrics_file)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert rows[-1]["train/advantage"] == 1.0
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    assert rows[-1]["flops"] == 8.0
    assert not any(key.startswith("val/") for row in rows for key in row)


def test_what_evaluators_return_stands_in_the_rows_and_in_the_summary(tiny):
    trainer = make(tiny, OnPolicy(), [Constant()])
    trainer.fit()
    rewards = {row["step"]: row.get("reward") for row in read_rows(trainer.logbook.metrics_file)}
    assert rewards == {**dict.fromkeys(range(1, 9)), 4: 0.5, 8: 0.5}
    summary = RunFolder(trainer.saver.store.folder.parent).read_summary()
    assert summary is not None
    assert summary["reward"] == 1.5


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_weights_of_targets_are_repetitions_and_a_weight_of_0_is_no_target(tiny, z_loss):
    trainer = make(tiny, OnPolicy())
    tokens = torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    loss, model = CrossEntropy(z_loss), trainer.model

    def terms(batch):
        return loss(model, batch, loss.denominators(batch))

    check = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
    plain, ones = (
        terms(TrainingBatch(inputs, targets)),
        terms(TrainingBatch(inputs, targets, torch.ones(2, 16))),
    )
    check(ones.objective, plain.objective)
    masked = targets.clone()
    masked[0, :5] = -1
    check(
        terms(TrainingBatch(inputs, targets, (masked >= 0).float())).loss,
        terms(TrainingBatch(inputs, masked)).loss,
    )
    twice = torch.ones(2, 16)
    twice[1] = 2.0
    repeated = TrainingBatch(torch.cat([inputs, inputs[1:]]), torch.cat([targets, targets[1:]]))
    check(terms(TrainingBatch(inputs, targets, twice)).loss, terms(repeated).loss)


class Told:
    """An evaluator whose losses are given by step."""

    def __init__(self, **losses):
        self.losses = {int(name[1:]): loss for name, loss in losses.items()}

    def evaluate(self, model, step, should_stop, *, final):
        return {"val/loss": 9.0 if final else self.losses[step]}


def best_of(trainer):
    summary = json.loads((trainer.logbook.metrics_file.parent / "summary.json").read_text())
    model = build_model(trainer.spec.model)
    tensors.read(trainer.saver.store.folder / "best", model)
    return summary["status"], summary["step"], summary["best_step"], summary["best_loss"], model.state_dict()


def test_the_best_evaluation_is_kept_through_a_restart(tiny, tmp_path):
    losses = Told(_2=3.0, _4=1.5, _6=float("nan"), _8=2.0)
    trainer = make(tiny, OnPolicy(), [losses], keep_best=True, eval_interval=2, iterations_to_run=5)
    assert trainer.fit() == "stopped"
    again = make(tiny, OnPolicy(), [losses], keep_best=True, eval_interval=2)
    again.load(ResumePoint(again.saver.store.path(5), own=True))
    assert again.fit() == "finished"
    *end, weights = best_of(again)
    assert end == ["finished", 8, 4, 1.5]
    assert again.saver.store.steps() == [4, 5, 8]
    untouched = make(tiny, OnPolicy(), run_dir=tmp_path / "short", iterations_to_run=4)
    untouched.fit()
    assert all(torch.equal(value, weights[name]) for name, value in untouched.model.state_dict().items())


def test_patience_ends_a_run_that_gets_no_better(tiny, caplog):
    losses = Told(_1=3.0, _2=2.0, _3=2.5, _4=2.0, _5=1.0, _6=0.0)
    trainer = make(tiny, OnPolicy(), [losses], patience=2, eval_interval=1)
    with caplog.at_level("INFO"):
        assert trainer.fit() == "finished"
    assert best_of(trainer)[:4] == ("finished", 4, 2, 2.0)
    assert "step 4: no better evaluation since step 2: the run ends" in caplog.text
