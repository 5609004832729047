"""The optimizers of torch and pytorch-optimizer: their own arithmetic, under our names and defaults."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import baselines, build_optimizer

pytorch_optimizer = pytest.importorskip("pytorch_optimizer")

LIBRARY = {
    "soap": "SOAP",
    "lion": "Lion",
    "prodigy": "Prodigy",
    "adopt": "ADOPT",
    "mars": "MARS",
    "lamb": "Lamb",
    "sf_adamw": "ScheduleFreeAdamW",
    "sf_sgd": "ScheduleFreeSGD",
    "signsgd": "SignSGD",
    "signum": "SignSGD",
}
EVERY = [*LIBRARY, "adamw", "sgd", "adafactor", "SophiaG"]
MEANT = {"lr", "weight_decay", "safeguard_warmup", "momentum"}
"""Settings whose defaults are not always the library's: the trainer warms up, and decay is asked for."""


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12))


def trained(model, optimizer, steps=range(8)):
    tokens = torch.arange(12)
    for step in steps:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens.roll(1 + step % 3)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", LIBRARY)
def test_steps_and_defaults_are_those_of_the_librarys_class(name):
    build, direct = getattr(baselines, name), getattr(pytorch_optimizer, LIBRARY[name])
    settings = {
        key: what.default for key, what in inspect.signature(build).parameters.items() if key != "params"
    }
    takes = inspect.signature(direct).parameters
    for key, value in settings.items():
        assert key in takes
        assert key in MEANT or takes[key].default == value, key
    settings |= {"lr": 0.01, "weight_decay": 0.01}
    ours, theirs = net(), net()
    found = trained(ours, build(ours.parameters(), **settings))
    settings |= {key: value for key, value in (("foreach", False), ("weight_decouple", True)) if key in takes}
    settings |= {"lr_1d": 0.01, "weight_decay_1d": 0.0} if name == "mars" else {}
    settings |= {"momentum": 0.0} if name == "signsgd" else {}
    assert torch.equal(found, trained(theirs, direct(theirs.parameters(), **settings)))


@pytest.mark.parametrize("name", EVERY)
def test_resume_is_bitwise_and_optimizers_can_be_pickled(name):
    whole, model = net(), net()
    want = trained(whole, getattr(baselines, name)(whole.parameters()))
    trained(model, optimizer := getattr(baselines, name)(model.parameters()), range(4))
    resumed = getattr(baselines, name)(model.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(trained(model, resumed, range(4, 8)), want)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_of_model_and_optimizer_goes_on_as_they_do(name, copied):
    model = net()
    optimizer = build_optimizer(name, model)
    trained(model, optimizer, range(4))
    second = copied((model, optimizer))
    assert torch.equal(trained(*second, range(4, 8)), trained(model, optimizer, range(4, 8)))


@pytest.mark.parametrize("turned", ["gradients", "parameters"])
def test_torchs_kernel_follows_gradients_and_parameters_of_another_memory_order(turned):
    def run(change):
        torch.manual_seed(0)
        model = nn.Conv2d(3, 4, 3)
        optimizer = baselines.adamw(model.parameters(), lr=0.01)
        for step in range(4):
            if change == "parameters" and step == 2:
                model.to(memory_format=torch.channels_last)
            for p in model.parameters():
                p.grad = torch.randn(p.shape)
                if change == "gradients" and p.ndim == 4:
                    p.grad = p.grad.to(memory_format=torch.channels_last)
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(run(turned), run(None))


@pytest.mark.parametrize("name", ["sf_adamw", "sf_sgd"])
def test_evaluation_of_schedule_free_optimizers_changes_nothing_and_refuses_steps(name):
    whole, model = net(), net()
    want = trained(whole, getattr(baselines, name)(whole.parameters(), weight_decay=0.1))
    optimizer = getattr(baselines, name)(model.parameters(), weight_decay=0.1)
    for step in range(8):
        trained(model, optimizer, [step])
        optimizer.eval()
        with pytest.raises(ValueError, match=r"call train\(\) before a step"):
            optimizer.step()
        optimizer.train()
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), want)


def test_sophia_against_its_equation_in_float64():
    p = nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
    optimizer = baselines.SophiaG([p], lr=0.1, weight_decay=0.2, hessian_interval=2)
    x, m, h = p.detach().clone(), torch.zeros(3).double(), torch.zeros(3).double()
    for step in range(5):
        g = torch.tensor([1.0, -0.3, 0.01], dtype=torch.float64) * (step + 1)
        assert optimizer.hessian_is_due() == (step % 2 == 0)
        if optimizer.hessian_is_due():
            p.grad = torch.tensor([0.5, float("inf"), 0.1], dtype=torch.float64)
            optimizer.update_hessian(40)
            h = torch.where(torch.tensor([True, False, True]), 0.99 * h + 0.01 * 40 * p.grad**2, h)
        p.grad = g
        optimizer.step()
        m = 0.96 * m + 0.04 * g
        x = x * (1 - 0.1 * 0.2) - 0.1 * (m / (0.05 * h).clamp(min=1e-12)).clamp(-1, 1)
    torch.testing.assert_close(p.detach(), x, rtol=1e-12, atol=0)


class Sharded(nn.Parameter):
    def to_local(self):
        return self


@pytest.mark.parametrize("name", ["soap", "prodigy", "mars", "lamb", "adafactor"])
def test_what_needs_whole_tensors_refuses_shards_in_a_line(name):
    with pytest.raises(UserError, match="needs whole tensors"):
        getattr(baselines, name)([Sharded(torch.ones(2, 2))])


def test_torch_kernel_is_left_out_where_a_parameter_has_gaps_or_is_complex():
    gaps = nn.Parameter(torch.ones(4, 4)[:, :2])
    assert not baselines.adamw([nn.Parameter(torch.ones(2, dtype=torch.complex64))]).defaults["fused"]
    assert baselines.adamw([nn.Parameter(torch.ones(4))]).defaults["fused"]
    assert not baselines.adamw([gaps]).defaults["fused"]


@pytest.mark.parametrize("name", EVERY)
def test_empty_parameters_are_skipped(name):
    params = [nn.Parameter(torch.ones(shape)) for shape in ((4, 4), (0, 4), (4, 0), (0,))]
    optimizer = getattr(baselines, name)(params, lr=0.1)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert not torch.equal(params[0], torch.ones(4, 4))
