"""Groups as people's trainers make them: added later, unfrozen, with numpy's numbers and torch's schedulers."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from danalab import optim
from danalab.errors import UserError
from danalab.optim import ADana, DanaMuon, Muon, build_optimizer, list_optimizers, optimizer_spec

NAMES = ("adana", "ademamix", "dana-muon", "muon", "adamw", "soap", "sophia", "muon-h", "snoo", "snoo-dana", "soda")


def net() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"embedding": nn.Embedding(7, 4), "body": nn.Linear(4, 4), "head": nn.Linear(4, 7)})


def train(model: nn.Module, optimizer: Any, steps: int = 2) -> None:
    for step in range(steps):
        for i, p in enumerate(model.parameters()):
            g = torch.randn(p.shape, generator=torch.Generator().manual_seed(9 * step + i))
            p.grad = g.to(p.dtype) if p.requires_grad else None
        optimizer.step()


def held(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize("name", NAMES)
def test_frozen_parameters_wait_in_the_groups_without_state_and_train_once_unfrozen(name):
    model, twin = net(), net()
    model["body"].requires_grad_(False)
    optimizer = build_optimizer(name, model, lr=1e-2)
    assert set(held(optimizer)) == set(model.parameters())
    train(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    assert sum(bool(state) for state in saved["state"].values()) in (0, 3)
    get_optimizer_state_dict(model, optimizer)
    assert torch.equal(model["body"].weight, twin["body"].weight)
    model.requires_grad_(True)
    resumed = build_optimizer(name, model, lr=1e-2)
    resumed.load_state_dict(saved)
    before = model["body"].weight.detach().clone()
    for each in (optimizer, resumed):
        model["body"].weight.data.copy_(before)
        train(model, each, 3)  # the first steps of some only prepare
        assert not torch.equal(model["body"].weight, before)
    optimizer.load_state_dict(optimizer.state_dict())


def test_what_is_unfrozen_later_steps_as_one_that_was_free_from_the_start():
    model, twin = net(), net()
    model["body"].requires_grad_(False)
    frozen, free = ADana(model, lr=1e-2, weight_decay=0.001), ADana(twin["body"], lr=1e-2, weight_decay=0.001)
    assert frozen.param_groups[0]["param_names"] == ["body.weight", "head.weight"]
    train(model, frozen)
    model["embedding"].requires_grad_(False), model["head"].requires_grad_(False)
    model["body"].requires_grad_(True)
    for _ in range(3):
        for p, q in zip(model["body"].parameters(), twin["body"].parameters(), strict=True):
            p.grad = torch.ones_like(p)
            q.grad = torch.ones_like(q)
        for p in (*model["embedding"].parameters(), *model["head"].parameters()):
            p.grad = None
        frozen.step(), free.step()
    assert torch.equal(model["body"].weight, twin["body"].weight)
    assert torch.equal(model["body"].bias, twin["body"].bias)


def test_frozen_weights_of_other_dtypes_stay_outside():
    model = nn.Linear(3, 3)
    model.register_parameter("codes", nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False))
    assert len(held(ADana(model))) == len(held(build_optimizer("muon", model))) == 2


def test_a_checkpoint_from_before_frozen_parameters_were_in_the_groups_still_loads():
    model = net()
    old = ADana([(name, p) for name, p in model.named_parameters() if "body" not in name], weight_decay=0.001)
    train(model, old)
    model["body"].requires_grad_(False)
    new = ADana(model, weight_decay=0.001)
    new.load_state_dict(old.state_dict())
    assert new.state[model["head"].weight]["step"] == 2
    assert model["body"].weight not in new.state


@pytest.mark.parametrize("name", [name for name in NAMES if name != "muon-h"])
def test_a_group_without_names_can_be_added_beside_named_ones_and_the_other_way_round(name):
    model, new = net(), nn.Linear(4, 3)
    for params in (model["head"], list(model["head"].parameters())):
        for added in (new.parameters(), list(new.named_parameters()), new.bias):
            optimizer = build_optimizer(name, params, lr=1e-2)
            optimizer.add_param_group({"params": added, "lr": 0.02})
            rates = {float(group["lr"]) for group in optimizer.param_groups if group["params"][-1] is new.bias}
            assert rates <= {0.02, 0.02 * 0.15, 0.02 / 16}  # of a vector
            before = new.bias.detach().clone()
            train(new, optimizer, 3)
            assert not torch.equal(new.bias, before)
            optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(
    "build",
    [ADana, lambda *a, **k: build_optimizer("adana", *a, **k), lambda *a, **k: build_optimizer("adamw", *a, **k)],
)
def test_kinds_of_groups_added_to_those_of_a_model_decide_about_decay(build):
    model = net()
    optimizer = build(model["head"], lr=1e-2, weight_decay=0.001)
    optimizer.add_param_group({"params": model["body"].parameters(), "lr": 0.02})
    *_, plain, decayed = optimizer.param_groups  # trainers set the rate of the last group
    assert (plain["params"], plain["weight_decay"]) == ([model["body"].bias], 0)
    assert (decayed["params"], decayed["weight_decay"], decayed["lr"]) == ([model["body"].weight], 0.001, 0.02)
    optimizer.add_param_group({"params": [model["embedding"].weight], "weight_decay": 0.002})
    assert optimizer.param_groups[-1]["weight_decay"] == 0.002
    whole = build(list(model["head"].parameters()), lr=1e-2, weight_decay=0.001)
    whole.add_param_group({"params": model["body"].parameters()})
    assert [group["weight_decay"] for group in whole.param_groups] == [0.001, 0.001]
    muon = DanaMuon(model["head"], lr=1e-2, weight_decay=0.001)
    muon.add_param_group({"params": model["body"].named_parameters()})
    assert [(g["use_muon"], g["weight_decay"]) for g in muon.param_groups[-2:]] == [(False, 0), (True, 0.001)]
    twin = copy.deepcopy(optimizer)
    twin.add_param_group({"params": nn.Linear(2, 2).parameters()})
    assert [group["weight_decay"] for group in twin.param_groups[-2:]] == [0, 0.001]


@pytest.mark.parametrize("name", ["adana", "muon", "dana-muon", "muon-h"])
def test_groups_have_the_initial_rate_that_hand_written_schedules_multiply(name):
    optimizer = build_optimizer(name, net(), lr=1e-2)
    assert all(group["initial_lr"] == group["lr"] == group["peak_lr"] for group in optimizer.param_groups)
    rates = [group["lr"] for group in optimizer.param_groups]
    LambdaLR(optimizer, lambda step: 0.5, last_epoch=3)  # torch: goes on only where there is an initial_lr
    assert [group["lr"] for group in optimizer.param_groups] == [0.5 * rate for rate in rates]
    optimizer.load_state_dict(optimizer.state_dict())
    assert [group["initial_lr"] for group in optimizer.param_groups] == rates


@pytest.mark.parametrize("name", ["muon", "muon-h", "dion2"])
def test_one_rate_for_groups_that_were_built_with_several_is_warned_of(name, caplog):
    model = net()
    for peaks, warned in ((0.02, True), (None, False)):
        caplog.clear()
        optimizer = build_optimizer(name, model, lr=0.02)
        rates = [group["peak_lr"] for group in optimizer.param_groups] if peaks is None else peaks
        scheduler = OneCycleLR(optimizer, rates, total_steps=10, cycle_momentum=False)
        for _ in range(3):
            train(model, optimizer, 1)
            scheduler.step()
        assert caplog.text.count("every group has the learning rate") == warned


def test_rates_may_be_tensors_of_one_element_that_schedules_write_to():
    for cls in (ADana, Muon, DanaMuon):
        p = nn.Parameter(torch.ones(4, 4))
        rate = torch.tensor([0.0])
        optimizer = cls([{"params": [p], "kind": "matrix", "peak_lr": 0.1}], lr=rate)
        rate.fill_(0.1)
        p.grad = torch.randn(4, 4)
        optimizer.step()
        assert not torch.equal(p, torch.ones(4, 4))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_may_get_its_memory_after_the_optimizer(name, monkeypatch):
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True, raising=False)
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with torch.device("meta"):
            model = nn.Linear(4, 4)
            optimizer = build_optimizer(name, model, lr=1e-2)
        model.to_empty(device="cpu")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
    nn.init.ones_(model.weight), nn.init.ones_(model.bias)
    train(model, optimizer, 3)
    assert not torch.equal(model.weight, torch.ones(4, 4))
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", list_optimizers())
def test_a_group_that_is_repeated_has_the_same_entry_in_the_state_dict(name):
    """As in torch's and timm's own tests."""
    optimizer = build_optimizer(name, net(), lr=1e-2)
    train(nn.ModuleList([nn.ParameterList(held(optimizer))]), optimizer)
    alone = optimizer.state_dict()["param_groups"][-1]
    optimizer.param_groups.extend(optimizer.param_groups)
    assert optimizer.state_dict()["param_groups"][-1] == alone


NUMBERS: dict[str, list[Any]] = {
    "lr": [1e-2, np.float32(1e-2), np.array(1e-2), torch.tensor(1e-2), torch.tensor([1e-2]), 1, "0.01", -1.0, True],
    "omega": [4, np.float32(4), np.int64(4), -1.0],
    "horizon": [50, np.int64(50), np.float32(50), 0],
    "weight_decay": [0.001, np.float64(0.001), np.float16(0.001), 0],
    "kappa": [0.5, np.float32(0.5)],
    "clipsnr": [np.int8(2), None],
    "betas": [(np.float32(0.9), 0.95), [0.9, 0.95], (0.9,)],
    "aux_lr": [np.float32(0.001), torch.tensor([0.001])],
    "ns_steps": [np.int64(3), 2.5],
    "maximize": [True, np.bool_(True)],
    "foreach": [np.bool_(False)],
}
OF_GROUPS: dict[str, list[Any]] = {
    **{key: NUMBERS[key] for key in ("lr", "weight_decay", "kappa", "betas")},
    "kind": ["matrix", "vector", "head", np.str_("embedding"), "nonsense"],
    "use_muon": [True, np.bool_(False), 0],
    "omega": [np.float32(2), None],
    "eps": [np.float32(1e-8)],
    "lr_factor": [0.5],
    "initial_lr": [0.1],
    "layer": [{"a": np.int64(1)}],
}
CLASSES = [
    getattr(optim, optimizer_spec(name).path.split(":")[1])
    for name in ("adana", "dana-star-mk4", "ademamix", "adamw-decaying-wd", "muon", "d-muon", "dana-muon")
]


def drawn(draw: random.Random, table: dict[str, list[Any]], share: float) -> dict[str, Any]:
    return {key: draw.choice(values) for key, values in table.items() if draw.random() < share}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("tries", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_random_groups_and_settings_work_or_are_refused_in_one_line(tries):
    worked, refused = 0, []
    for seed in range(tries):
        draw = random.Random(seed)
        model = net().to(draw.choice([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
        for p in model.parameters():
            p.requires_grad_(draw.random() < 0.85)
        named, count = list(model.named_parameters()), draw.randint(1, 3)
        pool: list[Any] = named if draw.random() < 0.5 else [p for _, p in named]
        groups = [{"params": pool[i::count], **drawn(draw, OF_GROUPS, 0.06)} for i in range(count)]
        params = draw.choice(
            [
                model,
                model.parameters(),
                model.named_parameters(),
                pool[0],
                groups,
                groups,
                [*named[:2], *model["head"].parameters()],
            ]
        )
        cls = draw.choice(CLASSES)
        settings = drawn(draw, NUMBERS, 0.12)
        if draw.random() < 0.8:
            settings = {k: v for k, v in settings.items() if k in ("lr", "maximize", "foreach")}
        try:
            optimizer = cls(params, **settings)
            train(model, optimizer)
            model.requires_grad_(True)
            optimizer.add_param_group({"params": nn.Linear(2, 2).parameters()})
            train(model, optimizer, 1)
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        except UserError as error:
            refused.append(str(error))
            continue
        worked += 1
        assert all(type(v).__module__ != "numpy" for group in optimizer.param_groups for v in group.values()), seed
        assert all(torch.isfinite(p).all() for p in model.parameters()), seed
    assert worked > 0.4 * tries
    assert refused
    assert not any("\n" in message for message in refused)
