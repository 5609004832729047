"""Optimizers of torch and pytorch-optimizer through the registry: their own arithmetic, our manners."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import pytorch_optimizer
import torch
from torch import nn

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.optim import build_optimizer, list_optimizers, optimizer_spec
from danalab.optim.optimizers.matrix.base import AUXILIARY

EVERY = list_optimizers()
LIBRARY = {
    "soap": "SOAP",
    "lion": "Lion",
    "prodigy": "Prodigy",
    "adopt": "ADOPT",
    "mars": "MARS",
    "lamb": "Lamb",
    "sf-adamw": "ScheduleFreeAdamW",
    "sf-sgd": "ScheduleFreeSGD",
    "signsgd": "SignSGD",
    "signum": "SignSGD",
    "adan": "Adan",
    "adabelief": "AdaBelief",
    "laprop": "LaProp",
    "stableadamw": "StableAdamW",
    "grams": "Grams",
    "tiger": "Tiger",
    "came": "CAME",
    "adamuon": "AdaMuon",
    "normuon": "NorMuon",
}
MEANT = {
    "prodigy": {"safeguard_warmup"},  # the trainer warms up
    "signsgd": {"momentum"},
    "stableadamw": {"kahan_sum"},
    "mars": {"lr_1d", "weight_decay_1d"},  # vectors are not decayed here; one learning rate
    "normuon": {"update_scale"},  # AdamW's update size, so that one learning rate does for all
}
"""Settings whose defaults are not the library's, and why; weight decay and how to compute apart."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(12, 8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.lm_head = nn.Linear(8, 12, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.lm_head(x + self.down(self.up(x).relu()))


def trained(model, optimizer, steps=8):
    tokens = torch.arange(12)
    for step in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens.roll(1 + step % 3)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_every_library_entry_is_compared_here():
    assert {name for name in EVERY if optimizer_spec(name).extra == "baselines"} == set(LIBRARY)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", LIBRARY)
def test_a_library_optimizer_steps_as_the_librarys_class_used_directly(name):
    spec, ours, theirs = optimizer_spec(name), Net(), Net()
    matrices = [p for n, p in theirs.named_parameters() if n in ("up.weight", "down.weight")]
    others = [p for n, p in theirs.named_parameters() if n not in ("up.weight", "down.weight")]
    settings = {key: what.default for key, what in spec.settings.items()} | {"weight_decay": 0.01}
    groups = [{"params": list(theirs.parameters())}]
    if "ns_steps" in settings:
        groups = [{"params": matrices, "use_muon": True}, {"params": others, "use_muon": False, "lr": 0.01}]
    direct = getattr(pytorch_optimizer, LIBRARY[name])
    takes = inspect.signature(direct).parameters
    settings |= {"foreach": False} if "foreach" in takes else {}
    settings |= {"weight_decouple": True} if "weight_decouple" in takes else {}
    settings |= {"lr_1d": 0.01} if "lr_1d" in settings else {}
    if not settings.keys().isdisjoint(AUXILIARY):
        settings = {key: value for key, value in settings.items() if key not in AUXILIARY} | {"adamw_lr": 0.01}
    parameters = list(ours.parameters())
    if "ns_steps" in settings:
        parameters = [
            {"params": [ours.up.weight, ours.down.weight], "use_muon": True},
            {"params": [p for n, p in ours.named_parameters() if n not in ("up.weight", "down.weight")],
             "use_muon": False},
        ]  # fmt: skip
    left = trained(ours, build_optimizer(name, parameters, lr=0.01, weight_decay=0.01))
    right = trained(theirs, direct(groups, lr=0.01, **settings))
    assert torch.equal(left, right)


@pytest.mark.parametrize("name", LIBRARY)
def test_what_an_optimizer_keeps_in_its_groups_has_one_shape_in_every_step(name):
    def shapes():
        kept = {key: value for key, value in optimizer.param_groups[0].items() if isinstance(value, torch.Tensor)}
        return {key: value.shape for key, value in kept.items()}

    model = Net()
    optimizer = build_optimizer(name, model)
    trained(model, optimizer, 1)
    first = shapes()
    trained(model, optimizer, 2)
    assert shapes() == first  # a checkpoint of a later step loads into an optimizer that has taken none
    assert "d_numerator" in first or name != "prodigy"


@pytest.mark.parametrize("name", LIBRARY)
def test_defaults_are_the_librarys_but_for_those_that_are_meant_otherwise(name):
    takes = inspect.signature(getattr(pytorch_optimizer, LIBRARY[name])).parameters
    for setting, what in optimizer_spec(name).settings.items():
        if setting in (*AUXILIARY, "by_kind", "age", "fresh"):  # our own; some make the library's adamw_lr and adamw_wd
            continue
        assert setting in takes
        if setting not in MEANT.get(name, set()) | {"weight_decay", "foreach"}:
            assert takes[setting].default == what.default, setting


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", EVERY)
def test_numbers_that_mean_nothing_are_refused_by_name(name):
    spec = optimizer_spec(name)
    for bad in (-0.1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="weight_decay") as caught:
            build_optimizer(name, Net(), weight_decay=bad)
        assert "\n" not in str(caught.value)
        with pytest.raises(UserError, match=r"\blr\b"):
            build_optimizer(name, Net(), lr=bad)
    if "betas" in spec.settings:
        first = spec.settings["betas"].default
        for betas in ((1.5, *first[1:]), (-0.1, *first[1:]), first[:1]):
            with pytest.raises(UserError, match="beta"):
                build_optimizer(name, Net(), betas=betas)


@pytest.mark.parametrize("name", EVERY)
def test_an_empty_list_of_parameters_is_refused(name):
    with pytest.raises(UserError, match="parameter"):
        build_optimizer(name, [])


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", EVERY)
def test_a_state_of_another_optimizer_or_model_is_refused_and_its_own_is_taken(name):
    model = Net()
    optimizer = build_optimizer(name, model, lr=0.01)
    trained(model, optimizer, steps=3)
    saved = optimizer.state_dict()
    other = build_optimizer("adamw" if name != "adamw" else "adana", Net(), lr=0.01)
    trained(Net(), other, steps=1)
    with pytest.raises(UserError):
        optimizer.load_state_dict(other.state_dict())
    bigger = Net()
    bigger.up, bigger.down = nn.Linear(8, 20), nn.Linear(20, 8)
    second = build_optimizer(name, bigger, lr=0.01)
    has_matrices = any(isinstance(v, torch.Tensor) and v.ndim > 1 for s in saved["state"].values() for v in s.values())
    if has_matrices or name in ("adafactor", "came"):
        with pytest.raises(UserError, match="shape"):
            second.load_state_dict(saved)
    twin = Net()
    twin.load_state_dict(model.state_dict())
    third = build_optimizer(name, twin, lr=0.01)
    third.load_state_dict(saved)
    assert torch.equal(trained(twin, third, steps=3), trained(model, optimizer, steps=3))


def test_both_forms_of_a_decaying_weight_decay_at_once_are_refused():
    for name in ("adana", "adamw-decaying-wd"):
        with pytest.raises(UserError, match="omega and weight_decay"):
            build_optimizer(name, Net(), omega=4.0, horizon=100, weight_decay=0.1)
    with pytest.raises(UserError, match="omega and horizon belong together"):
        build_optimizer("lion", Net(), omega=4.0)


def test_schedule_free_comes_back_from_evaluation_to_the_very_weights_it_left():
    for name in ("sf-adamw", "sf-sgd", "sf-normuon"):
        model = Net()
        optimizer = build_optimizer(name, model, lr=0.1)
        before = trained(model, optimizer)
        optimizer.eval()
        averaged = torch.cat([p.detach().flatten() for p in model.parameters()])
        optimizer.train()
        assert not torch.equal(before, averaged)
        assert torch.equal(before, torch.cat([p.detach().flatten() for p in model.parameters()]))


def test_sophia_divides_by_the_curvature_that_it_was_shown_and_steps_by_sign_without():
    p = nn.Parameter(torch.tensor([1.0, -1.0, 2.0]))
    optimizer = build_optimizer("sophia", [p], lr=0.1, betas=(0.0, 0.5), rho=1.0)
    p.grad = torch.tensor([3.0, -0.01, 0.5])
    optimizer.step()
    assert torch.allclose(p, torch.tensor([0.9, -0.9, 1.9]))
    optimizer = build_optimizer("sophia", [p], lr=0.1, betas=(0.0, 0.5), rho=1.0, hessian_interval=2)
    assert optimizer.hessian_is_due()
    p.grad = torch.tensor([1.0, 2.0, float("inf")])
    optimizer.update_hessian(4.0)  # estimates 4, 16, and one that is left out; averages 2, 8, 0
    p.grad = torch.tensor([1.0, 1.0, 1.0])
    start = p.detach().clone()
    optimizer.step()
    assert torch.allclose(start - p, torch.tensor([0.05, 0.0125, 0.1]))
    assert not optimizer.hessian_is_due()
    optimizer.step()
    assert optimizer.hessian_is_due()


@pytest.mark.slow
def test_without_the_library_everything_else_works_and_its_own_say_what_to_install():
    code = """
import sys
sys.modules["pytorch_optimizer"] = None
import torch
from danalab.errors import MissingExtra
from danalab.optim import build_optimizer, list_optimizers
p = torch.ones(2, requires_grad=True)
for name in ("adamw", "sgd", "adana", "sophia"):
    build_optimizer(name, [p])
assert "lion" in list_optimizers()
try:
    build_optimizer("lion", [p])
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "optimizer lion needs pytorch-optimizer: pip install 'danalab[baselines]'\n"


@pytest.mark.slow
def test_listing_does_not_import_the_library():
    code = """
import sys
from danalab.optim import list_optimizers
list_optimizers()
print("pytorch_optimizer" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", EVERY)
def test_the_memory_that_a_plan_reckons_with_is_what_the_optimizer_keeps(name):
    model = build_model(ModelConfig("enoki", 64, 2, 2, 32, 256, 256, 8), seed=0)
    optimizer = build_optimizer(name, model, lr=1e-3)
    tokens = torch.arange(16).view(2, 8)
    for _ in range(2):
        sum(model(tokens, tokens)).backward()
        optimizer.step()
    words = sum(map(words_of, optimizer.state_dict()["state"].values())) / sum(p.numel() for p in model.parameters())
    assert abs(words - optimizer_spec(name).state_words) < 0.1 + 0.05 * words


def words_of(value):
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size() / 4
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return sum(map(words_of, parts))
