"""SODA and EMA-Nesterov: their formulas around any optimizer, exact when they go on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import SODA, ADana, EMANesterov, Muon

INNER = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.05, weight_decay=0.0),
    "adana": lambda params: ADana(params, lr=0.05),
    "muon": lambda params: Muon(params, lr=0.02),
}
WRAPPERS = {"soda": SODA, "ema": EMANesterov}


def made():
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in ((4, 3), (5,))]


def give(params, step):
    for p in params:
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * step + p.ndim), dtype=p.dtype)


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_soda_is_the_inner_step_and_a_pull_to_the_start(inner):
    params, plain = made(), made()
    optimizer, alone = SODA(inner(params)), inner(plain)
    initial = [p.detach().clone() for p in params]
    want = [p.detach().clone() for p in params]
    for k in range(6):
        before = [p.detach().clone() for p in plain]
        give(params, k), give(plain, k)
        optimizer.step(), alone.step()
        for i, p in enumerate(plain):  # the inner steps depend on the gradients alone
            want[i] = want[i] + (initial[i] - want[i]) / (k + 2) + (p.detach() - before[i])
            torch.testing.assert_close(params[i].detach(), want[i], rtol=1e-12, atol=1e-12)


def test_soda_with_a_closure_takes_the_gradient_before_the_pull():
    def run(by_closure):
        (p, _) = made()
        optimizer = SODA(torch.optim.SGD([p], lr=0.1))

        def closure():
            p.grad = 2 * p.detach()
            return torch.tensor(1.0)

        for _ in range(4):
            if by_closure:
                assert optimizer.step(closure) == 1.0
            else:
                closure()
                optimizer.step()
        return p.detach()

    assert torch.equal(run(True), run(False))


def test_soda_refuses_a_second_weight_decay():
    with pytest.raises(UserError, match=r"weight_decay is 0\.1"):
        SODA(torch.optim.AdamW(made(), weight_decay=0.1))
    with pytest.raises(UserError, match="offset is 0"):
        SODA(torch.optim.SGD(made()), offset=0)


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_ema_nesterov_steps_from_ahead_along_the_average_of_its_changes(inner):
    params, plain = made(), made()
    gamma, beta = 0.9, 0.6
    optimizer, alone = EMANesterov(inner(params), gamma=gamma, beta=beta), inner(plain)
    rates = [group["lr"] for group in optimizer.param_groups]
    theta, trend = [p.detach().clone() for p in params], [torch.zeros_like(p) for p in params]
    for step in range(6):
        for group, twin, lr in zip(optimizer.param_groups, alone.param_groups, rates, strict=True):
            group["lr"] = twin["lr"] = lr * (1 - step / 10)
        give(params, step), give(plain, step)
        before = [p.detach().clone() for p in plain]
        ahead = [p.detach().clone() for p in params]
        optimizer.step(), alone.step()
        for i, p in enumerate(plain):
            new = ahead[i] + (p.detach() - before[i])
            trend[i] = gamma * trend[i] + (1 - gamma) * (new - theta[i])
            theta[i] = new
            want = theta[i] + beta * (1 - step / 10) * trend[i]
            torch.testing.assert_close(params[i].detach(), want, rtol=1e-12, atol=1e-12)


def test_without_look_ahead_it_is_the_inner_optimizer():
    params, plain = made(), made()
    optimizer, alone = EMANesterov(ADana(params, lr=0.05), beta=0.0), ADana(plain, lr=0.05)
    for step in range(4):
        give(params, step), give(plain, step)
        optimizer.step(), alone.step()
    assert all(torch.equal(p, q) for p, q in zip(params, plain, strict=True))


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_going_on_is_bitwise(wrapper, inner):
    params = made()
    optimizer = wrapper(inner(params))
    for step in range(3):
        give(params, step)
        optimizer.step()
    others = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = wrapper(inner(others))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(3, 6):
        give(params, step), give(others, step)
        optimizer.step(), resumed.step()
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


@pytest.mark.parametrize("settings", [{"gamma": 1.0}, {"gamma": True}, {"beta": -0.1}, {"beta": float("nan")}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        EMANesterov(torch.optim.SGD(made()), **settings)
