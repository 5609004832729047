"""Saving and loading: nothing is lost, and what belongs elsewhere is refused by name."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from danalab.errors import UserError
from danalab.optim import (
    AdamWDecayingWD,
    ADana,
    DanaMK4,
    DanaStar,
    DanaStarMK4,
    build_optimizer,
    get_schedule,
    lr_scheduler,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"
REST = ("1.bias", "2.weight", "2.bias", "3.bias")
ALL = [ADana, DanaMK4, DanaStar, DanaStarMK4, AdamWDecayingWD]


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)).to(dtype)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        tokens = torch.randint(0, 7, (5,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        net(tokens).square().sum().backward()
        optimizer.step()


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cls", ALL)
def test_training_goes_on_bitwise_after_loading(cls, dtype):
    straight = model(dtype)
    cooldown = {"momentum_cooldown": 1.5} if "momentum_cooldown" in cls([torch.ones(1)]).defaults else {}
    first = cls(straight.named_parameters(), lr=1e-2, omega=2.0, horizon=100, **cooldown)
    for group in first.param_groups:
        group["lr"] = 6e-3  # below the peak: what the cooldown follows is saved, too
    train(straight, first, range(3))
    resumed = copy.deepcopy(straight)
    saved = copy.deepcopy(first.state_dict())
    second = cls(resumed.named_parameters(), lr=0.5, omega=1.0, horizon=50)
    second.load_state_dict(saved)
    train(straight, first, range(3, 6))
    train(resumed, second, range(3, 6))
    assert equal(straight, resumed)


def test_loading_restores_every_setting_but_not_the_way_to_compute():
    net = model()
    odd = {"delta": 5.0, "kappa": 0.7, "eps": 1e-6, "gamma3": 0.5, "alpha_offset": 0.0, "clipsnr": 1.0}
    odd |= {"momentum_cooldown": 1.5}
    saved = DanaMK4(net.parameters(), lr=0.3, omega=1.0, horizon=50, fused=True, maximize=True, **odd).state_dict()
    loaded = DanaMK4(net.parameters(), lr=0.1, fused=False)
    loaded.load_state_dict(saved)
    group = loaded.param_groups[0]
    want = {**odd, "lr": 0.3, "peak_lr": 0.3, "weight_decay": 0.2, "wd_ts": 5.0, "maximize": True, "fused": False}
    assert {key: group[key] for key in want} == want


def test_loaded_state_is_a_copy():
    net = model()
    first = ADana(net.parameters(), lr=0.1)
    train(net, first, range(2))
    saved = first.state_dict()
    before = copy.deepcopy(saved["state"])
    second = ADana(net.parameters(), lr=0.1)
    second.load_state_dict(saved)
    train(net, second, range(2))
    assert all(torch.equal(saved["state"][i][key], before[i][key]) for i in before for key in before[i])


def test_bfloat16_parameters_keep_float32_moments_through_loading():
    net = model(torch.bfloat16)
    first = ADana(net.parameters(), lr=0.1)
    train(net, first, range(2))
    second = ADana(net.parameters(), lr=0.1)
    second.load_state_dict(first.state_dict())
    for p in net.parameters():
        assert torch.equal(first.state[p]["exp_avg"], second.state[p]["exp_avg"])
        assert second.state[p]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize(
    ("saved_by", "loaded_by", "word"),
    [
        (torch.optim.AdamW, ADana, "betas"),
        (torch.optim.SGD, ADana, "momentum"),
        (ADana, DanaStar, "tau"),
        (DanaStar, ADana, "tau"),
        (ADana, DanaMK4, "clipsnr"),
        (DanaMK4, ADana, "clipsnr"),
        (ADana, AdamWDecayingWD, "betas"),
        (torch.optim.AdamW, AdamWDecayingWD, "wd_ts"),
    ],
)
def test_state_of_another_optimizer_is_refused(saved_by, loaded_by, word):
    net = model()
    other = saved_by(net.parameters(), lr=0.1)
    train(net, other, range(1))
    with pytest.raises(UserError, match=word) as caught:
        loaded_by(net.parameters(), lr=0.1).load_state_dict(other.state_dict())
    assert "\n" not in str(caught.value)


def test_state_of_another_model_is_refused_and_nothing_changes():
    small, large = nn.Linear(3, 2), nn.Linear(4, 2)
    optimizer = ADana(small.named_parameters(), lr=0.1)
    with pytest.raises(UserError, match=r"'weight'.*\(2, 4\).*\(2, 3\)"):
        optimizer.load_state_dict(ADana(large.named_parameters(), lr=0.7).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("broken", [None, {}, {"state": {}}, [1]])
def test_what_is_no_state_dict_is_refused(broken):
    with pytest.raises(UserError, match="state_dict"):
        ADana([torch.ones(1, requires_grad=True)]).load_state_dict(broken)


def test_missing_state_and_other_groups_are_refused():
    net = model()
    optimizer = ADana(net.named_parameters())
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["state"][2]
    with pytest.raises(UserError, match=r"no state for parameter '1.bias'"):
        optimizer.load_state_dict(saved)
    with pytest.raises(UserError, match="parameter groups"):
        build_optimizer("adana", net).load_state_dict(ADana(net.parameters()).state_dict())


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize("cls", ALL)
def test_round_trip_through_distributed_checkpoint(cls, flat, tmp_path):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    straight = model()
    first = cls(straight.parameters(), lr=1e-2, omega=2.0, horizon=100)
    train(straight, first, range(3))
    dcp.save({"optimizer": get_optimizer_state_dict(straight, first, options=options)}, checkpoint_id=tmp_path)

    resumed = copy.deepcopy(straight)
    second = cls(resumed.parameters(), lr=1e-2, omega=2.0, horizon=100)
    found = {"optimizer": get_optimizer_state_dict(resumed, second, options=options)}
    dcp.load(found, checkpoint_id=tmp_path)
    set_optimizer_state_dict(resumed, second, found["optimizer"], options=options)
    train(straight, first, range(3, 6))
    train(resumed, second, range(3, 6))
    assert equal(straight, resumed)


@pytest.mark.parametrize("cls", ALL)
def test_asking_for_the_state_changes_no_parameter_and_no_clock(cls):
    net = model()
    optimizer = cls(net.parameters(), lr=1e-2, weight_decay=0.5)
    before = copy.deepcopy(net)
    get_optimizer_state_dict(net, optimizer)
    assert equal(net, before)
    assert all(optimizer.state[p]["step"] == 0 for p in net.parameters())


@pytest.mark.parametrize("flags", [{}, {"fused": False}, {"foreach": True}, {"capturable": True}], ids=str)
def test_steps_are_counted_beyond_the_integers_of_float32(flags):
    p = torch.zeros(3, requires_grad=True)
    p.grad = torch.ones(3)
    optimizer = ADana([p], lr=1e-3, **flags)
    optimizer.state[p]["step"].fill_(2**24)
    before = optimizer.coefficients()["beta"]
    for _ in range(3):
        optimizer.step()
    assert int(optimizer.state[p]["step"]) == 2**24 + 3
    assert optimizer.coefficients()["t"] == 2**24 + 3
    assert optimizer.coefficients()["beta"] > before


def test_float32_step_counts_of_older_checkpoints_load():
    p, q = (torch.zeros(3, requires_grad=True) for _ in range(2))
    old = ADana([p]).state_dict()
    old["state"][0]["step"] = torch.tensor(41.0)
    optimizer = ADana([q])
    optimizer.load_state_dict(old)
    q.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(optimizer.state[q]["step"], torch.tensor(42))


def test_state_of_0_1_with_named_parameters_in_one_group_goes_on_as_it_did_there():
    saved = torch.load(FIXTURES / "optimizer_0_1" / "adana_named.pt", weights_only=True)
    net = model()
    optimizer = ADana(net.named_parameters(), lr=0.3, omega=1.0, horizon=50)
    scheduler = lr_scheduler(optimizer, get_schedule("cos_inf", 100, 5))
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    for step in range(10, 20):
        train(net, optimizer, range(step, step + 1))
        scheduler.step()
    groups = optimizer.param_groups
    assert [group["param_names"] for group in groups] == [["0.weight", "1.weight", "3.weight"], [*REST]]
    assert {(group["weight_decay"], group["wd_ts"], group.get("decay_bound")) for group in groups} == {
        (0.2, 10.0, None)
    }
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.detach(), saved["model_at_20"][name], rtol=1e-5, atol=1e-7)


def test_one_group_of_other_names_is_not_split():
    net, other = model(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    saved = ADana(other.named_parameters(), lr=0.1).state_dict()
    with pytest.raises(UserError, match="1 parameter groups, this optimizer 2"):
        ADana(net, lr=0.1).load_state_dict(saved)
