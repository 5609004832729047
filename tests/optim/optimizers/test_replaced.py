"""Libraries that shard a model (accelerate with FSDP2) put other parameters into the groups of a built optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import build_optimizer

NAMES = ("adana", "dana-star-mk4", "muon", "adamw", "snoo", "snoo-dana", "prodigy", "soap", "lion")


def twins(name: str):
    """An optimizer whose parameters were replaced before its first step, and one that was built with those."""
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    third = nn.Linear(4, 4)
    third.load_state_dict(second.state_dict())
    replaced, built = build_optimizer(name, first), build_optimizer(name, third)
    swap = dict(zip(first.parameters(), second.parameters(), strict=True))
    for group in replaced.param_groups:
        group["params"] = [swap[p] for p in group["params"]]
    return (replaced, second), (built, third)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_that_are_replaced_before_the_first_step_are_followed(name):
    (replaced, model), (built, twin) = twins(name)
    for _ in range(3):
        for optimizer, net in ((replaced, model), (built, twin)):
            net(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert set(replaced.state) == set(model.parameters())  # the old ones' moments are not kept in memory


@pytest.mark.parametrize("name", NAMES)
def test_a_clock_is_never_lost_in_silence(name):
    (optimizer, model), _ = twins(name)
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["params"] = [nn.Parameter(p.detach().clone()) for p in group["params"]]
    with pytest.raises(UserError, match="replaced after they had taken steps"):
        optimizer.step()
