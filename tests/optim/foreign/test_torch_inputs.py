"""torch's tables of inputs to Adam and AdamW, good and bad ones (`torch.testing._internal.common_optimizers`), on ours.

What torch's generic tests ask of an optimizer for each input: the loss falls, `foreach` makes the steps of the loop, a
copy, a pickle and a state continue alike, and missing gradients leave all as it is.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import danalab.optim
from danalab.errors import UserError

tables = pytest.importorskip("torch.testing._internal.common_optimizers", reason="torch's tests need expecttest")
torch.backends.__dict__["__allow_nonbracketed_mutation_flag"] = True  # which torch's helpers for tests turn off
pytestmark = pytest.mark.slow

CLASSES = ("AdamWDecayingWD", "ADana", "AdEMAMix", "AdEMAMixDecayingWD", "AutoDana", "Dana", "DanaMK4", "DanaStar",
           "DanaStarMK4", "SignDana", "Muon", "DMuon", "DanaMuon", "Manau")  # fmt: skip
REFUSED = {"amsgrad": "a maximum of second moments: none of these rules has one"}
"""Settings that torch's Adam takes and we do not -> why."""
OTHERWISE = {"invalid param type": "UserError in place of TypeError: it says that a list was meant"}
"""Bad inputs that end in another error than in torch -> why."""
ACCEPTED = {
    "lr as Tensor doesn't work with foreach & not capturable": "scalars of a step are read on the CPU first",
    "betas must be either both floats or both Tensors": "both are read as numbers",
    r"betas\[0\] as a Tensor is not supported for capturable=False and foreach=True": "both are read as numbers",
}
"""Bad inputs of torch that ours take -> why."""


MATRICES = ("Muon", "DMuon", "DanaMuon", "Manau")
"""Of these parameters with and without names may be mixed: a name only says what a parameter is."""


def build(name: str, **settings: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, getattr(danalab.optim, name)(model.named_parameters(), **settings)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses, sign = [], -1 if optimizer.defaults.get("maximize") else 1
    for step in steps:
        torch.manual_seed(step % 2)
        inputs = torch.randn(16, 4)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        (sign * loss).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


GOOD = {each.desc: each.kwargs for each in tables.optim_inputs_func_adamw("cpu")} | {
    "Tensor lr": {"lr": torch.tensor(0.01)}  # torch has it for other devices
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("case", list(GOOD))
def test_an_input_of_adamw_trains_and_continues_alike(name, case):
    settings = {**GOOD[case]}
    if "weight_decay" in settings and name not in MATRICES:
        settings["weight_decay"] *= 1e-3  # torch's is multiplied by its learning rate, ours by the schedule alone
    if refused := REFUSED.keys() & settings.keys():
        with pytest.raises((UserError, TypeError), match=refused.pop()):
            build(name, **settings)
        return
    model, optimizer = build(name, **settings)
    losses = train(model, optimizer, range(20))
    assert losses[-1] < losses[1]
    assert re.match(type(optimizer).__name__, repr(optimizer))

    copied, copied_model = copy.deepcopy((optimizer, model))
    pickled, pickled_model = pickle.loads(pickle.dumps((optimizer, model)))
    loaded_model, loaded = build(name, **settings)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    for part, state in zip((loaded_model, loaded), torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(model, optimizer, range(20, 24))
    for again, its_optimizer in ((copied_model, copied), (pickled_model, pickled), (loaded_model, loaded)):
        train(again, its_optimizer, range(20, 24))
        assert all(map(torch.equal, weights(again), weights(model)))

    before = weights(model)
    optimizer.zero_grad()
    optimizer.step()
    assert all(map(torch.equal, weights(model), before))


@pytest.mark.parametrize("name", CLASSES)
def test_foreach_makes_the_steps_of_the_loop(name):
    ended = []
    for foreach in (False, True):
        model, optimizer = build(name, lr=0.01, foreach=foreach, fused=False)
        train(model, optimizer, range(10))
        ended.append(weights(model))
    torch.testing.assert_close(*ended)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    "bad", tables.optim_error_inputs_func_adam("cpu", torch.float32), ids=lambda bad: bad.optimizer_error_input.desc
)
def test_a_bad_input_is_refused_as_by_torch_or_for_a_reason_not(name, bad):
    given = bad.optimizer_error_input
    params = given.params if given.params is not None else [nn.Parameter(torch.randn(2, 2))]
    make = getattr(danalab.optim, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "betas" in given.kwargs and "betas" not in inspect.signature(make).parameters:
            with pytest.raises(TypeError, match="betas"):
                make(params, **given.kwargs)
        elif "betas" in given.kwargs and name.startswith("AdEMAMix"):  # it has three
            with pytest.raises(UserError, match="betas"):
                make(params, **given.kwargs)
        elif given.desc in ACCEPTED or (name in MATRICES and given.desc.endswith("names")):
            make(params, **given.kwargs)
        elif bad.error_type is UserWarning:
            with pytest.warns(UserWarning, match=bad.error_regex):
                make(params, **given.kwargs)
        else:
            with pytest.raises(UserError if given.desc in OTHERWISE else bad.error_type):
                make(params, **given.kwargs)
