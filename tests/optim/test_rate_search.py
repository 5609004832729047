"""Three short runs, and more where the best is the outermost."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import find_lr, list_optimizers
from danalab.optim.rate_search import next_rate, rates_to_try

BATCHES = [
    (torch.randn(16, 4, generator=torch.Generator().manual_seed(step)), torch.arange(16) % 3) for step in range(12)
]


def linear():
    return nn.Linear(4, 3)


def test_the_best_rate_lies_between_two_others_and_repeats():
    state = torch.get_rng_state()
    found = find_lr(linear, BATCHES, "adana", rates=(1e-5, 2e-5))
    assert torch.equal(torch.get_rng_state(), state)
    assert min(found.losses) < found.lr
    assert found.at_edge == (found.lr == max(found.losses))
    assert len(found.losses) > 2
    assert found.losses[found.lr] == min(found.losses.values())
    assert find_lr(linear, BATCHES, "adana", rates=(1e-5, 2e-5)) == found


def test_a_loss_and_a_measure_of_ones_own():
    model_of: list[nn.Module] = []

    def loss(model, batch):
        model_of.append(model)
        return model(batch).square().mean()

    found = find_lr(linear, [torch.ones(2, 4)] * 3, "dana-muon", loss=loss, evaluate=lambda model: 1.0, most=3)
    assert len(found.losses) == 3
    assert len({id(model) for model in model_of}) == 3


def test_diverged_rates_are_infinite_and_lower_ones_are_tried():
    def loss(model, batch):
        group = seen[-1] if seen else 0
        return model(batch).sum() * (math.nan if group else 1.0)

    seen: list[int] = []
    found = find_lr(linear, [torch.ones(2, 4)] * 3, "sgd", loss=loss, evaluate=lambda _: -1.0, rates=(0.1, 0.2), most=3)
    assert found.losses.keys() == {0.05, 0.1, 0.2}
    seen.append(1)
    with pytest.raises(UserError, match="sgd diverges at every rate from 0"):
        find_lr(linear, [torch.ones(2, 4)] * 3, "sgd", loss=loss, rates=(0.1, 0.2), most=4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batches": []}, "no batches"),
        ({"rates": (1e-3,)}, "two or more"),
        ({"rates": (0.0, 1e-3)}, "positive"),
        ({"opt": "adanna"}, "did you mean"),
        ({"opt": "sophia"}, "more than gradients"),
        ({"kapa": 0.8}, "kapa"),
    ],
)
def test_bad_input_is_one_line(given, words):
    given = {"batches": BATCHES, **given}
    with pytest.raises(UserError, match=words) as error:
        find_lr(linear, given.pop("batches"), **given)
    assert "\n" not in str(error.value)


def test_every_optimizer_has_rates_to_begin_with():
    for name in list_optimizers():
        low, middle, high = rates_to_try(name)
        assert 0 < low < middle < high


def test_the_next_rate_is_beyond_the_outermost_best():
    assert next_rate({0.5: 3, 1: 2, 2: 1}) == 4
    assert next_rate({0.5: 1, 1: 2, 2: 3}) == 0.25
    assert next_rate({0.5: 2, 1: 1, 2: 3}) is None
