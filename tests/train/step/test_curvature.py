"""Sophia's estimate in the trainer: from labels that the model draws, a function of seed and step."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from danalab.data import open_dataset
from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.optim import build_optimizer
from danalab.train.config.resolve import resolve
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.step.gradients import CurvatureEstimator, GradientStep
from danalab.train.step.loss import CrossEntropy, TrainingBatch
from danalab.train.trainer import OptimizerDriver, Trainer

CONFIG = ModelConfig("enoki", 16, 1, 2, 8, 32, 12, 8)


class Parts(SimpleNamespace):
    model: nn.Module
    curvature: CurvatureEstimator
    driver: OptimizerDriver


def parts(
    seed: int = 0, micro_batch: int = 4, strategy: ParallelStrategy | None = None, grad_clip: float = 1e-6
) -> Parts:
    torch.manual_seed(0)
    model = build_model(CONFIG, seed=0)
    driver = OptimizerDriver(build_optimizer("sophia", model, lr=1e-3, hessian_interval=2), "sophia")
    strategy = strategy or ParallelStrategy(World())
    gradients = GradientStep(
        model, driver.parameters, micro_batch=micro_batch, grad_clip=grad_clip, loss=CrossEntropy(z_loss=1.0),
        autocast=contextlib.nullcontext, strategy=strategy,
    )  # fmt: skip
    curvature = CurvatureEstimator(gradients, driver.optimizer, seed=seed, vocab_size=12)
    return Parts(model=model, curvature=curvature, driver=driver, gradients=gradients)


def test_every_seed_that_a_run_may_have_draws_labels():
    run = parts(seed=2**64 - 1)
    run.curvature.before_step(1, TrainingBatch(*data()))
    assert estimate(run)


def data(sequences: int = 4):
    draw = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 12, (sequences, 9), generator=draw)
    return tokens[:, :-1], tokens[:, 1:].clone()


def estimate(run: Parts) -> dict[str, torch.Tensor]:
    names = {id(p): name for name, p in run.model.named_parameters()}
    optimizer = run.driver.optimizer  # whose average moves by 1 - beta2 towards an estimate
    rate = 1 - optimizer.param_groups[0]["betas"][1]
    return {
        names[id(p)]: state["hessian"] / rate
        for p, state in optimizer.state.items()
        if state["hessian"].any()
    }


def test_labels_are_a_function_of_seed_and_step_and_leave_the_global_generator_alone():
    inputs, targets = data()
    run = parts()
    before = torch.get_rng_state()
    labels = run.curvature._draw(3, inputs, targets)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(labels, parts().curvature._draw(3, inputs, targets))
    assert not torch.equal(labels, run.curvature._draw(4, inputs, targets))
    assert not torch.equal(labels, parts(seed=1).curvature._draw(3, inputs, targets))


def test_labels_follow_the_models_own_distribution_and_masked_positions_draw_none():
    run = parts()
    inputs, targets = data(1)
    targets[0, :3] = -1
    draws = run.curvature._draw(0, inputs.expand(2000, -1), targets.expand(2000, -1))
    assert (draws[:, :3] == -1).all()
    shares = torch.nn.functional.one_hot(draws[:, 3:], 12).double().mean(0)
    odds = torch.softmax(run.model(inputs)[0, 3:].double(), -1)
    assert (shares - odds).abs().max() < 5 * 0.5 / 2000**0.5


def test_the_estimate_is_n_times_the_squared_gradient_without_clipping_and_z_loss():
    inputs, targets = data()
    targets[1, 2:] = -1
    run, plain = parts(), parts()
    labels = plain.curvature._draw(0, inputs, targets)
    loss = nn.functional.cross_entropy(plain.model(inputs).flatten(0, 1), labels.flatten(), ignore_index=-1)
    loss.backward()
    run.curvature.before_step(0, TrainingBatch(inputs, targets))
    n = int((targets >= 0).sum())
    found = estimate(run)
    for name, p in plain.model.named_parameters():
        torch.testing.assert_close(found[name], n * p.grad.square(), rtol=1e-4, atol=1e-8)
    assert all(p.grad is None for p in run.model.parameters())


def test_only_one_micro_batch_is_used_and_only_when_it_is_time():
    inputs, targets = data(8)
    run, first = parts(micro_batch=4), parts(micro_batch=4)
    run.curvature.before_step(0, TrainingBatch(inputs, targets))
    first.curvature.before_step(0, TrainingBatch(inputs[:4], targets[:4]))
    assert all(
        torch.equal(a, b) for a, b in zip(estimate(run).values(), estimate(first).values(), strict=True)
    )
    run.gradients(TrainingBatch(inputs, targets))
    run.driver.optimizer.step()
    run.driver.optimizer.zero_grad()
    before = estimate(run)
    run.curvature.before_step(1, TrainingBatch(inputs, targets))
    assert all(torch.equal(a, b) for a, b in zip(estimate(run).values(), before.values(), strict=True))


def test_an_estimate_for_a_step_that_is_skipped_is_drawn_anew_for_the_next(tiny):
    config = tiny(opt="sophia", optimizer_settings={"hessian_interval": 2}, on_nonfinite="skip")
    dataset = open_dataset(config.data)
    resolved = resolve(config, dataset)
    trainer = Trainer(resolved, dataset, RunFolder(resolved.run_dir))
    batches = dataset.batches(seed=1, global_batch=4, seq_len=16)
    hook = trainer.model.get_parameter("final_norm.weight").register_hook(lambda g: g * float("nan"))
    trainer._make_step(TrainingBatch(*batches[0]), logged=False)
    hook.remove()
    assert trainer.driver.optimizer.hessian_is_due()
    assert not any(int(state["step"]) for state in trainer.driver.optimizer.state.values())
    trainer._make_step(TrainingBatch(*batches[1]), logged=False)
    assert not trainer.driver.optimizer.hessian_is_due()
    states = trainer.driver.optimizer.state.values()
    assert all(state["hessian"].isfinite().all() for state in states)
    assert any(state["hessian"].any() for state in states)


def test_settings_of_the_run_are_not_taken_a_second_time(tiny):
    dataset = open_dataset(tiny().data)
    for settings, message in (
        ({"horizon": 5.0}, "the run's length is --iterations"),
        ({"alpha_ofset": 1.0}, "adana has no alpha_ofset; it has .*alpha_offset"),
    ):
        with pytest.raises(UserError, match=message):
            resolve(tiny(opt="adana", optimizer_settings=settings), dataset)
