"""Gradients of a global batch, whatever it is cut into."""

from __future__ import annotations

import contextlib

import pytest
import torch

from danalab.models import ModelConfig, build_model
from danalab.models.loss import hoyer_penalty
from danalab.train.step.gradients import GradientStep, update_norm
from danalab.train.step.loss import CrossEntropy, TrainingBatch


def gradients(micro_batch: int, *, masked: bool = False, clip: float = 0.0, spoil: bool = False):
    model = build_model(ModelConfig("enoki", 32, 2, 2, 16, 64, 64, 16))
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 64, (6, 17), generator=draw)
    targets = tokens[:, 1:].clone()
    if masked:
        targets[torch.rand(targets.shape, generator=draw) < 0.6] = -1
        targets[0] = -1
    if spoil:
        with torch.no_grad():
            model.blocks[1].mlp_norm.weight[0] = float("nan")  # type: ignore[union-attr, index]
    parameters = list(model.parameters())
    step = GradientStep(
        model,
        parameters,
        micro_batch=micro_batch,
        grad_clip=clip,
        loss=CrossEntropy(1e-4),
        autocast=contextlib.nullcontext,
    )
    result = step(TrainingBatch(tokens[:, :-1], targets))
    return result, torch.cat([p.grad.flatten() for p in parameters]), model, tokens, targets


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_accumulation_changes_no_gradient(micro_batch, masked):
    whole, expected, *_ = gradients(6, masked=masked)
    result, found, *_ = gradients(micro_batch, masked=masked)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(result.loss, whole.loss, rtol=1e-6, atol=0)


def test_the_logged_loss_is_the_mean_over_all_valid_targets():
    result, _, model, tokens, targets = gradients(2, masked=True)
    logits = model(tokens[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    torch.testing.assert_close(result.loss, expected.detach(), rtol=1e-6, atol=0)


def test_the_norm_is_before_clipping_and_the_gradient_after():
    free, gradient, *_ = gradients(3)
    clipped, smaller, *_ = gradients(3, clip=0.5)
    torch.testing.assert_close(free.grad_norm, gradient.norm())
    assert float(clipped.grad_norm) == float(free.grad_norm) > 0.5
    torch.testing.assert_close(smaller.norm(), torch.tensor(0.5), rtol=1e-4, atol=0)


def test_a_spoilt_weight_shows_in_the_finite_check():
    assert not gradients(6, spoil=True)[0].finite
    assert gradients(6)[0].finite


def test_update_norm_is_the_length_of_the_way():
    weights = [torch.zeros(3), torch.ones(2, 2)]
    before = [w.clone() for w in weights]
    weights[0] += 1
    weights[1] += 0.5
    assert float(update_norm(before, weights)) == pytest.approx(2.0)


@pytest.mark.parametrize("micro_batch", [2, 6])
def test_the_hoyer_penalty_pulls_at_the_embedding_and_is_no_part_of_the_loss(micro_batch):
    _, plain, model, tokens, targets = gradients(micro_batch)
    parameters = list(model.parameters())
    model.zero_grad()
    step = GradientStep(
        model, parameters, micro_batch=micro_batch, grad_clip=0, loss=CrossEntropy(1e-4, 0.3),
        autocast=contextlib.nullcontext,
    )  # fmt: skip
    result = step(TrainingBatch(tokens[:, :-1], targets))
    found = torch.cat([p.grad.flatten() for p in parameters]) - plain
    penalty = hoyer_penalty(model.token_embedding(tokens[:, :-1]))
    expected = torch.autograd.grad(0.3 * penalty, parameters, materialize_grads=True)
    torch.testing.assert_close(found, torch.cat([g.flatten() for g in expected]), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(result.metrics["hoyer"], penalty.detach())
    torch.testing.assert_close(result.loss, model(tokens[:, :-1], targets)[0].detach())
