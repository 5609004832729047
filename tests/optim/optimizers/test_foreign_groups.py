"""What foreign trainers do to groups between steps: any key written, left out or of another type works, or one line
says what is wrong; then nothing has changed, and with the group as it was the run goes on with the same bits."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import DanaMuon, build_optimizer, list_optimizers, optimizer_spec
from optimizer_kinds import others_slow

WRITTEN: dict[str, list[Any]] = {
    "momentum": [0.9, 0.0], "nesterov": [True, False], "betas": [(0.9, 0.99), (0.9, 0.99, 0.999)], "clipsnr": [1.0],
    "delta": [4.0], "kappa": [0.5], "alpha": [2.0], "rho": [0.1], "dampening": [0.0], "ns_steps": [3], "beta2": [0.9],
    "amsgrad": [False], "heads": [1], "age": [None], "dana_momentum": [False], "matched_rms": [0.3],
    "cautious": [True], "layer": ["attention", 3], "red_pajama": [{"a": 1}], "max_lr": [1.0], "fresh": [None],
}  # fmt: skip
"""Keys that a trainer may write, with values that mean something to some optimizer."""
WRONG = ["0.1", None, "no", [0.9], {"lr": 1}, float("nan"), -1.0, (0.9, "x"), object(), b"1"]


def is_library(name: Any) -> bool:
    return optimizer_spec(name if isinstance(name, str) else name.values[0]).extra is not None


def net() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"embedding": nn.Embedding(7, 4), "body": nn.Linear(4, 4), "head": nn.Linear(4, 7)})


def step(model: nn.Module, optimizer: Any, number: int) -> None:
    for i, p in enumerate(model.parameters()):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(9 * number + i))
    if optimizer_closure(optimizer):
        optimizer.step(lambda: sum(p.square().sum() for p in model.parameters()))
    else:
        optimizer.step()


def optimizer_closure(optimizer: Any) -> bool:
    return getattr(getattr(optimizer, "spec", None), "closure", False)


def refusal(make: Callable[[], None]) -> str | None:
    try:
        make()
    except UserError as error:
        return str(error)
    return None


def same(model: nn.Module, twin: nn.Module) -> bool:
    return all(map(torch.equal, model.parameters(), twin.parameters()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", others_slow(list_optimizers()))
def test_whatever_a_trainer_does_to_a_group_works_or_is_told_in_one_line(name):
    given = {} if optimizer_spec(name).inner else {"lr": 1e-2}
    model, twin = net(), net()
    optimizer, straight = build_optimizer(name, model, **given), build_optimizer(name, twin, **given)
    for number in range(2):
        step(model, optimizer, number), step(twin, straight, number)
    draw, ours = random.Random(name), optimizer_spec(name).extra is None
    told = 0
    for number in range(2, 32):
        groups = optimizer.param_groups
        group = draw.choice(groups)
        kept = dict(group)
        what = draw.choice(["written", "left out", "wrong", "wrong"])
        key = draw.choice([key for key in group if key not in ("params", "param_names")])
        if what == "written":
            key = draw.choice(list(WRITTEN))
            group[key] = draw.choice(WRITTEN[key])
        elif what == "left out":
            del group[key]
        else:
            group[key] = draw.choice(WRONG)
        before = [p.detach().clone() for p in model.parameters()]
        complaint = refusal(lambda: step(model, optimizer, number))  # noqa: B023
        if complaint is not None:
            told += 1
            assert "\n" not in complaint
            if not ours:
                break
            assert all(map(torch.equal, model.parameters(), before)), (what, key)
            group.clear(), group.update(kept)
            step(model, optimizer, number)
            step(twin, straight, number)
            assert same(model, twin), (what, key)
            continue
        if ours and what == "written" and key not in optimizer_spec(name).settings and key not in kept:
            step(twin, straight, number)  # a key that is none of its own changes nothing
            if key not in MEANT:
                assert same(model, twin), (what, key)
        model, twin = net(), net()
        optimizer, straight = build_optimizer(name, model, **given), build_optimizer(name, twin, **given)
    assert told


MEANT = ("heads", "clipsnr")
"""Keys of groups with a meaning, though an optimizer has no such setting: the rule of Dana-Star clips, too."""


def test_danamuon_keeps_its_momentum_whatever_trainers_write():
    model, twin = net(), net()
    optimizer, straight = DanaMuon(model), DanaMuon(twin)
    for number in range(3):
        for group in optimizer.param_groups:
            group.update(momentum=0.85 + 0.03 * number, nesterov=True, betas=(0.8, 0.9))
        step(model, optimizer, number), step(twin, straight, number)
    assert same(model, twin)


@pytest.mark.parametrize("name", ["adana", "muon", "snoo-dana"])
def test_the_line_names_the_optimizer_and_the_key(name):
    model = net()
    optimizer = build_optimizer(name, model)
    step(model, optimizer, 0)
    optimizer.param_groups[0]["weight_decay"] = None
    with pytest.raises(UserError, match=": weight_decay is None; it must be a number"):
        step(model, optimizer, 1)
    del optimizer.param_groups[0]["weight_decay"]
    with pytest.raises(UserError, match="parameter group 0 has no weight_decay"):
        step(model, optimizer, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in others_slow(list_optimizers()) if not is_library(name)])
def test_groups_that_are_given_added_or_loaded_work_or_are_told_in_one_line(name):
    draw = random.Random(f"{name} given")
    keys = [
        *optimizer_spec(name).settings,
        "lr",
        "kind",
        "use_muon",
        "peak_lr",
        "lr_factor",
        "eps_factor",
        "param_names",
    ]
    values = [*WRONG, 0, 1, True, torch.tensor(0.1), torch.ones(2), (0.9, 0.99)]
    saved = trained(name, net()).state_dict()
    told = 0
    for _ in range(12):
        key = draw.choice([key for key in keys if key != "differentiable"])
        value, model, new = draw.choice(values), net(), nn.Linear(3, 3)

        def given(key=key, value=value, model=model) -> None:
            parameters = list(model.parameters())
            trained(name, model, [{"params": parameters[:2], key: value}, {"params": parameters[2:]}])

        def added(key=key, value=value, model=model, new=new) -> None:
            optimizer = trained(name, model)
            optimizer.add_param_group({"params": list(new.parameters()), key: value})
            step(nn.ModuleList([model, new]), optimizer, 1)

        def loaded(value=value, model=model) -> None:
            state = copy.deepcopy(saved)
            group = draw.choice(state["param_groups"])
            group[draw.choice([key for key in group if key != "params"])] = value
            optimizer = build_optimizer(name, model)
            optimizer.load_state_dict(state)
            step(model, optimizer, 1)

        for attempt in (given, added, loaded):
            complaint = refusal(attempt)
            assert complaint is None or "\n" not in complaint
            told += complaint is not None
    assert told


def trained(name: str, model: nn.Module, groups: Any = None) -> Any:
    optimizer = build_optimizer(name, model if groups is None else groups)
    step(model, optimizer, 0)
    return optimizer
