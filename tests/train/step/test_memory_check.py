"""Trying the largest micro-batch before a run changes nothing of it, and says what to do where it doesn't fit."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch

from danalab.data.vocabulary import Vocabulary
from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.optim import build_optimizer
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.world import World
from danalab.train.step import memory
from danalab.train.step.gradients import GradientStep, LossScale
from danalab.train.step.loss import CrossEntropy, TrainingBatch
from danalab.train.step.memory import try_step
from danalab.train.step.optimizer_driver import OptimizerDriver

CPU = torch.device("cpu")


@pytest.fixture
def parts():
    model = build_model(ModelConfig("enoki", 32, 2, 2, 16, 64, 64, 16))
    driver = OptimizerDriver(build_optimizer("adana", model, lr=1e-3))
    scale = LossScale(CPU)
    gradients = GradientStep(
        model,
        driver.parameters,
        micro_batch=4,
        seq_len=16,
        grad_clip=0.5,
        loss=CrossEntropy(1e-4),
        autocast=contextlib.nullcontext,
        loss_scale=scale,
    )
    return model, driver, gradients, scale


def test_it_leaves_weights_gradients_state_and_random_numbers_as_they_were(parts):
    model, driver, gradients, scale = parts
    weights, random, before = (
        [p.clone() for p in model.parameters()],
        torch.get_rng_state(),
        scale.state_dict(),
    )
    try_step(gradients, driver, device=CPU)
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert all(
        not v.any() for state in driver.optimizer.state.values() for v in state.values() if torch.is_tensor(v)
    )
    assert torch.equal(torch.get_rng_state(), random)
    assert scale.state_dict() == before


def test_too_little_memory_ends_in_advice(parts, monkeypatch):
    _, driver, gradients, _ = parts

    def of_labels(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")

    monkeypatch.setattr(gradients, "of_labels", of_labels)
    gradients.micro_batch, gradients.seq_len = 32, 2048
    with pytest.raises(UserError, match=r"micro-batches of 32 x 2048 tokens: lower --batch-size .* fsdp"):
        try_step(gradients, driver, device=CPU)


# ---- float16's factor on the loss ----


def test_the_loss_scale_halves_where_gradients_overflow_and_doubles_after_many_good_steps():
    scale = LossScale(CPU)
    scale.update(torch.tensor(False))
    assert float(scale.value) == 2.0**15
    for _ in range(2000):
        scale.update(torch.tensor(True))
    assert float(scale.value) == 2.0**16
    for _ in range(40):
        scale.update(torch.tensor(False))
    assert float(scale.value) == 1.0
    again = LossScale(CPU)
    again.load_state_dict(scale.state_dict())
    assert again.state_dict() == scale.state_dict()


def test_a_scaled_loss_gives_the_same_gradients_and_norms(parts):
    model, driver, gradients, _ = parts
    plain = GradientStep(
        model,
        driver.parameters,
        micro_batch=4,
        grad_clip=0.5,
        loss=CrossEntropy(1e-4),
        autocast=contextlib.nullcontext,
    )
    tokens = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))
    expected = plain(TrainingBatch(tokens, tokens))
    grads = [p.grad.clone() for p in driver.parameters]
    driver.zero_grad()
    found = gradients(TrainingBatch(tokens, tokens))
    torch.testing.assert_close(found.grad_norm, expected.grad_norm)
    torch.testing.assert_close([p.grad for p in driver.parameters], grads)


@pytest.mark.parametrize(("kind", "words"), [("adamw", 2), ("adana", 0)])
def test_memory_of_a_state_that_is_not_there_yet_is_held_beside_the_gradients(
    parts, monkeypatch, kind, words
):
    model, driver, gradients, _ = parts
    if kind == "adamw":  # torch's makes its state in the first step, ours before
        driver = OptimizerDriver(torch.optim.AdamW(model.parameters()))
    order, empty = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **more: order.append(size[0]) or empty(*size, **more))
    monkeypatch.setattr(gradients, "of_labels", lambda batch: order.append("step"))
    try_step(gradients, driver, device=CPU)
    numbers = sum(p.numel() for p in driver.parameters)
    assert order == [4 * words * numbers, "step", numbers]  # bytes, then numbers


def test_an_average_of_the_weights_counts_before_the_run_is_built(monkeypatch):
    config = TrainConfig(
        opt="adana", d_model=512, n_layers=2, n_heads=8, vocab_size=320, seq_len=16, batch_size=1
    )
    needed: list[int] = []
    monkeypatch.setattr(memory, "require_memory", lambda size, *_: needed.append(size))
    for ema in (None, 0.9):
        spec = resolve(replace(config, ema=ema), Vocabulary("data", "bytes", 320, 1, None))
        memory.check_training_memory(spec, World.single(), CPU)
    assert (needed[1] - needed[0]) / spec.model.exact_params == pytest.approx(
        4, rel=0.01
    )  # a copy in float32
