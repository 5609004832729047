"""Sophia's curvature on several ranks: each draws labels for its own part, and the estimate is that of all of them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from danalab.train.parallel.layout import RankLayout
from danalab.train.parallel.strategy import strategy_of
from danalab.train.parallel.world import World, join
from danalab.train.step.gradients import CurvatureEstimator, GradientStep
from danalab.train.step.loss import CrossEntropy, TrainingBatch
from danalab.train.trainer import OptimizerDriver
from distributed.curves import ROWS, VOCAB, batch, config
from distributed.ranks import run_ranks

LAYOUTS = {
    "ddp": RankLayout("ddp"),
    "zero": RankLayout("zero"),
    "fsdp": RankLayout("fsdp"),
    "tensor-parallel": RankLayout("fsdp", tp_size=2),
}


def setup(world: World) -> tuple[Any, CurvatureEstimator, OptimizerDriver, GradientStep]:
    strategy = strategy_of(world.layout.backend)(world)
    model = strategy.build_model(config("enoki"), init="scaled-gpt", seed=0, device=torch.device("cpu"))
    strategy.wrap(model, None)
    driver = OptimizerDriver(
        strategy.make_optimizer("sophia", model, lr=1e-2, rho=0.01, hessian_interval=2), "sophia"
    )
    settings = {"autocast": contextlib.nullcontext, "strategy": strategy}
    loss = CrossEntropy(1e-4)
    gradients = GradientStep(
        model, driver.parameters, micro_batch=ROWS // 4, grad_clip=0.5, loss=loss, **settings
    )
    return (
        model,
        CurvatureEstimator(gradients, driver.optimizer, seed=3, vocab_size=VOCAB + 1),
        driver,
        gradients,
    )


def whole(p: torch.Tensor) -> torch.Tensor:
    return (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()


def shared(rank: int, size: int, layout: RankLayout) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(parameters after three steps, this rank's labels of those steps that drew any)."""
    world = join(layout, "cpu")
    model, curvature, driver, gradients = setup(world)
    labels = []
    draw = curvature._draw

    def remembered(*args: Any) -> torch.Tensor:
        labels.append(draw(*args))
        return labels[-1]

    curvature._draw = remembered  # type: ignore[method-assign]
    part = ROWS // world.dp_size
    own = slice(world.dp_rank * part, (world.dp_rank + 1) * part)
    for step in range(3):
        inputs, targets = batch(step)
        curvature.before_step(step, TrainingBatch(inputs[own], targets[own]))
        gradients(TrainingBatch(inputs[own], targets[own]))
        driver.optimizer.step()
        driver.optimizer.zero_grad()
    return [whole(p) for p in model.parameters()], labels


def alone(labels: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Parameters after the same steps in one process, which is told the labels of each data-parallel rank."""
    model, _, driver, gradients = setup(World())
    part = ROWS // len(labels)
    for step in range(3):
        inputs, targets = batch(step)
        if driver.optimizer.hessian_is_due():
            used = torch.cat([inputs[rank * part : rank * part + ROWS // 4] for rank in range(len(labels))])
            drawn = torch.cat([own[step // 2] for own in labels])
            driver.optimizer.update_hessian(gradients.of_labels(TrainingBatch(used, drawn)))
            driver.optimizer.zero_grad()
        gradients(TrainingBatch(inputs, targets))
        driver.optimizer.step()
        driver.optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_step_is_that_of_one_process_with_the_same_labels(name):
    found = run_ranks(shared, 2, LAYOUTS[name], seconds=120.0)
    assert all(len(labels) == 2 for _, labels in found)
    same_data = name == "tensor-parallel"
    assert all(torch.equal(a, b) == same_data for a, b in zip(found[0][1], found[1][1], strict=True))
    expected = alone([found[0][1]] if same_data else [labels for _, labels in found])
    for p, q in zip(found[0][0], expected, strict=True):
        # A step is at most 1e-2; where the curvature is tiny, its reciprocal shows rounding.
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4)
