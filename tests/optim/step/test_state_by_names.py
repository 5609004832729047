"""State goes to the parameters of the same names, whatever their order; what a resumed run keeps is said."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import ADana, DistributedMuonAdamW, build_optimizer

NAMES = ("adana", "dana-muon", "adamw", "soap", "muon-h", "snoo", "snoo-dana")
BUILDERS: dict[str, Any] = {name: lambda model, name=name, **k: build_optimizer(name, model, **k) for name in NAMES}
BUILDERS["zero"] = lambda model, **k: DistributedMuonAdamW(model, optimizer="adana", **k)


def model(order: str) -> nn.Module:
    """Layers of the same shape, defined in the given order."""
    torch.manual_seed(0)
    net = nn.Module()
    made = {key: nn.Linear(4, 4) for key in "abc"}
    for key in order:
        net.add_module(key, made[key])
    return net


def train(net: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        for name, p in net.named_parameters():
            seed = 10 * step + "abc".index(name.removeprefix("_orig_mod.")[0])
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", BUILDERS)
def test_state_follows_the_names_when_a_model_is_defined_in_another_order(name):
    first, other = model("abc"), model("cab")
    old, new = BUILDERS[name](first, lr=0.01), BUILDERS[name](other, lr=0.01)
    train(first, old, range(3))
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    other.load_state_dict(first.state_dict())
    train(first, old, range(3, 5)), train(other, new, range(3, 5))
    for key, p in first.named_parameters():
        assert torch.equal(p, other.get_parameter(key)), key


@pytest.mark.parametrize("name", BUILDERS)
def test_state_of_other_names_is_refused_and_that_without_names_goes_by_order(name):
    first, other = model("abc"), nn.ModuleDict({key: nn.Linear(4, 4) for key in "abd"})
    old, new = BUILDERS[name](first, lr=0.01), BUILDERS[name](other, lr=0.01)
    train(first, old, range(2))
    saved = copy.deepcopy(old.state_dict())
    with pytest.raises(UserError, match=r"'c.bias', 'c.weight'.*'d.bias', 'd.weight'") as caught:
        new.load_state_dict(saved)
    assert "\n" not in str(caught.value)
    for group in saved["param_groups"]:
        del group["param_names"]
    new.load_state_dict(saved)


def test_the_wrappers_of_torch_do_not_change_names():
    first, wrapped = model("abc"), nn.Module()
    wrapped._orig_mod = model("bca")  # as torch.compile names parameters
    old, new = ADana(first.named_parameters(), lr=0.01), ADana(wrapped.named_parameters(), lr=0.01)
    train(first, old, range(2))
    new.load_state_dict(old.state_dict())
    assert torch.equal(new.state[wrapped._orig_mod.c.weight]["exp_avg"], old.state[first.c.weight]["exp_avg"])
    assert new.param_groups[0]["param_names"][0] == "_orig_mod.b.weight"


def test_state_of_parameters_that_changed_their_group_goes_with_them():
    net = model("abc")
    pairs = dict(net.named_parameters())

    def build(*plain: str) -> ADana:
        named = [(key, p) for key, p in pairs.items() if key not in plain]
        return ADana([{"params": named, "weight_decay": 0.001}, {"params": [(key, pairs[key]) for key in plain]}])

    old, new = build("a.bias", "b.bias"), build("a.bias", "b.bias", "c.bias")
    train(net, old, range(2))
    new.load_state_dict(old.state_dict())
    assert torch.equal(new.state[pairs["c.bias"]]["exp_avg"], old.state[pairs["c.bias"]]["exp_avg"])
    assert [group["weight_decay"] for group in new.param_groups] == [0.001, 0.0]
    three = ADana([{"params": [(key, p) for key, p in pairs.items() if key[0] == letter]} for letter in "abc"])
    with pytest.raises(UserError, match="groups of the saved run"):
        three.load_state_dict(old.state_dict())


@pytest.mark.parametrize("name", ["adana", "dana-muon", "adamw", "snoo"])
def test_settings_that_a_resumed_run_keeps_are_said(name, caplog):
    net = model("a")
    old, new = (
        build_optimizer(name, net, lr=lr, omega=4.0, horizon=horizon) for lr, horizon in ((1e-3, 8000), (5e-4, 80000))
    )
    train(net, old, range(2))
    saved = old.state_dict()
    build_optimizer(name, net, lr=1e-3, omega=4.0, horizon=8000).load_state_dict(saved)
    assert "built with" not in caplog.text
    new.load_state_dict(saved)
    assert caplog.text.count("built with") >= 1
    assert "param_groups after load_state_dict" in caplog.text


def test_the_warning_beyond_the_horizon_is_that_of_the_resumed_run(caplog):
    net = model("a")
    old, new = ADana(net, omega=4.0, horizon=2), ADana(net, omega=4.0, horizon=400)
    train(net, old, range(2))
    new.load_state_dict(old.state_dict())
    caplog.clear()
    for each, its in (copy.deepcopy((net, new)), (net, new)):
        train(each, its, range(2, 4))
    assert caplog.text.count("beyond the horizon of 2 steps") == 2
