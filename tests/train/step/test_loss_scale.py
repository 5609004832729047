"""float16's factor on the loss, and the estimate of memory before a run is built."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace

import pytest
import torch

from danalab.data.vocabulary import Vocabulary
from danalab.models import ModelConfig, build_model
from danalab.optim import build_optimizer
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from danalab.train.step.gradients import GradientStep, LossScale
from danalab.train.step.loss import CrossEntropy, TrainingBatch
from danalab.train.trainer import OptimizerDriver


@pytest.fixture
def parts():
    model = build_model(ModelConfig("enoki", 32, 2, 2, 16, 64, 64, 16))
    driver = OptimizerDriver(build_optimizer("adana", model, lr=1e-3))
    gradients = GradientStep(
        model,
        driver.parameters,
        micro_batch=4,
        seq_len=16,
        grad_clip=0.5,
        loss=CrossEntropy(1e-4),
        autocast=contextlib.nullcontext,
        loss_scale=LossScale(),
    )
    return model, driver, gradients


def test_the_loss_scale_halves_where_gradients_overflow_and_doubles_after_many_good_steps():
    scale = LossScale()
    scale.update(False)
    assert scale.value == 2.0**15
    for _ in range(2000):
        scale.update(True)
    assert scale.value == 2.0**16
    for _ in range(40):
        scale.update(False)
    assert scale.value == 1.0
    assert LossScale(**asdict(scale)) == scale


def test_a_scaled_loss_gives_the_same_gradients_and_norms(parts):
    model, driver, gradients = parts
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
    driver.optimizer.zero_grad()
    found = gradients(TrainingBatch(tokens, tokens))
    torch.testing.assert_close(found.grad_norm, expected.grad_norm)
    torch.testing.assert_close([p.grad for p in driver.parameters], grads)


def test_an_average_of_the_weights_counts_before_the_run_is_built():
    config = TrainConfig(
        opt="adana", d_model=512, n_layers=2, n_heads=8, vocab_size=320, seq_len=16, batch_size=1
    )
    specs = [
        resolve(replace(config, ema=ema), Vocabulary("data", "bytes", 320, 1, None)) for ema in (None, 0.9)
    ]
    raw, averaged = (spec.memory_gib(spec.batch_size, recompute=True) * 2**30 for spec in specs)
    assert (averaged - raw) / specs[0].model.exact_params == pytest.approx(4, rel=0.01)  # a copy in float32
