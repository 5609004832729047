"""What all optimizers share: step counts, state, settings, and a step that torch's own tools can use."""

from __future__ import annotations

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from danalab.optim import build_optimizer
from danalab.optim.adamw import AdamWDecayingWD
from danalab.optim.ademamix import AdEMAMix, AdEMAMixDecayingWD
from danalab.optim.base import decay_factor, decay_rate
from danalab.optim.dana import ADana, DanaMK4, DanaStar, DanaStarMK4
from danalab.optim.experimental import SNOO, AutoDana, Dana, SignDana
from danalab.optim.schedules import lr_scheduler

FAMILY = (
    ADana,
    DanaMK4,
    DanaStar,
    DanaStarMK4,
    AdamWDecayingWD,
    AdEMAMix,
    AdEMAMixDecayingWD,
    Dana,
    SignDana,
    AutoDana,
)
WITH_KERNEL = FAMILY[:7]


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def train(model, optimizer, steps, first=0):
    for i in range(first, first + steps):
        generator = torch.Generator().manual_seed(i)
        dtype = next(model.parameters()).dtype
        model(torch.randn(3, 8, generator=generator).to(dtype)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("build", [*FAMILY, lambda params, lr: SNOO(DanaStarMK4(params, lr), k=3)])
@pytest.mark.parametrize("rounding", [False, True, "moments"])
def test_a_resumed_run_is_bitwise_an_uninterrupted_one(build, rounding):
    if rounding and build not in FAMILY[:7]:
        return
    dtype = torch.bfloat16 if rounding else torch.float32
    settings = {"stochastic_rounding": rounding} if rounding else {}
    model = net(dtype)
    whole = train(model, build(model.parameters(), lr=1e-2, **settings), 6)
    model = net(dtype)
    first = build(model.parameters(), lr=1e-2, **settings)
    train(model, first, 4)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = build(model.parameters(), lr=0.5, **settings)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert same(train(model, second, 2, first=4), whole)
    assert all(state["step"].dtype == torch.int64 for state in second.state.values())


@pytest.mark.parametrize("build", FAMILY)
def test_only_parameters_with_a_gradient_move_and_count_their_steps(build):
    a, b, frozen, empty = (nn.Parameter(torch.ones(n)) for n in (3, 3, 3, 0))
    frozen.requires_grad_(False)
    optimizer = build([a, b, frozen, empty], lr=1e-2)
    assert frozen not in optimizer.state
    for step in range(3):
        a.grad, b.grad, empty.grad = torch.ones(3), torch.ones(3) if step == 1 else None, torch.ones(0)
        optimizer.step()
    assert [int(optimizer.state[p]["step"]) for p in (a, b)] == [3, 1]
    frozen.requires_grad_(True)
    frozen.grad = torch.ones(3)
    optimizer.step()
    assert int(optimizer.state[frozen]["step"]) == 1
    assert not torch.equal(frozen, torch.ones(3))
    late = nn.Parameter(torch.ones(3))
    copy.deepcopy(optimizer).add_param_group({"params": [late], "lr": 0.5})
    optimizer.add_param_group({"params": [late], "lr": 0.5})
    assert optimizer.param_groups[1]["peak_lr"] == 0.5
    assert optimizer.param_groups[0].keys() == optimizer.param_groups[1].keys()


def test_a_learning_rate_of_zero_moves_no_weight_and_counts():
    p = nn.Parameter(torch.ones(3))
    optimizer = ADana([p], lr=1e-2, omega=4.0, horizon=100)
    optimizer.param_groups[0]["lr"] = 0.0
    p.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(p, torch.ones(3))
    assert int(optimizer.state[p]["step"]) == 1


@pytest.mark.parametrize("build", WITH_KERNEL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_kernel_computes_what_the_function_does(build, dtype):
    def run(fused):
        generator = torch.Generator().manual_seed(0)
        shapes = ((5, 7), (300,), (), (4, 3, 2, 2), (17, 9))
        params = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
        params[3].data = params[3].data.to(memory_format=torch.channels_last)
        optimizer = build(params, lr=1e-2, weight_decay=1e-3, fused=fused)
        for step in range(8):
            for i, p in enumerate(params):
                g = torch.randn(p.shape, generator=generator).to(dtype)
                p.grad = g.mT.contiguous().mT if i == 4 else g  # another order in memory
                if i == 1 and step % 2:
                    p.grad = None  # steps counts that differ
            optimizer.step()
        return params

    wide = dtype in (torch.float32, torch.float64)
    close = {"rtol": 2e-6 if wide else 2e-2, "atol": 2e-7 if wide else 1e-3}
    for native, eager in zip(run(None), run(False), strict=True):
        torch.testing.assert_close(native, eager, **close)


@pytest.mark.parametrize("build", WITH_KERNEL)
def test_the_number_of_threads_changes_no_bit(build):
    def run(threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            p = nn.Parameter(torch.randn(50_001, generator=torch.Generator().manual_seed(0)))
            optimizer = build([p], lr=1e-2)
            for step in range(3):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
                optimizer.step()
            return p.detach()
        finally:
            torch.set_num_threads(before)

    assert torch.equal(run(1), run(3))


@pytest.mark.parametrize("build", [ADana, DanaStarMK4, AdEMAMix])
def test_a_step_inside_torch_compile_is_the_eager_one(build):
    first, second = net(), net()
    plain, other = build(first.parameters(), lr=1e-2), build(second.parameters(), lr=1e-2)

    def step(model, optimizer, x):
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = torch.compile(step, backend="eager")
    alone = torch.compile(lambda: other.step(), backend="eager")
    for i in range(4):
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(i))
        step(first, plain, x)
        if i % 2:
            compiled(second, other, x)
        else:
            second(x).square().sum().backward()
            alone()
            other.zero_grad()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_schedulers_find_the_rate_that_stands_in_the_groups():
    model = net()
    optimizer = ADana(model.parameters(), lr=1e-3)
    optimizer.param_groups[0]["lr"] = 1e-4
    LambdaLR(optimizer, lambda step: 1.0)
    assert optimizer.param_groups[0]["lr"] == 1e-4
    hybrids = ("muon", "d-muon", "dana-muon", "manau", "snoo-dana")
    made = [build(model.parameters(), lr=1e-3) for build in FAMILY]
    for each in [*made, *(build_optimizer(name, model, lr=1e-3) for name in hybrids)]:
        rates = [group["lr"] for group in each.param_groups]
        with pytest.raises(ValueError, match="momentum"):
            OneCycleLR(each, max_lr=rates, total_steps=10)
        OneCycleLR(each, max_lr=rates, total_steps=10, cycle_momentum=False)


@pytest.mark.parametrize("build", WITH_KERNEL)
@pytest.mark.parametrize("fused", [None, False])
def test_maximizing_is_minimizing_the_opposite(build, fused):
    def run(sign):
        p = nn.Parameter(torch.linspace(-1, 1, 9))
        optimizer = build([p], lr=1e-2, fused=fused, maximize=sign < 0)
        for step in range(3):
            p.grad = sign * torch.randn(9, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        return p.detach()

    assert torch.equal(run(1), run(-1))


def test_a_closure_is_evaluated_with_gradients():
    model = net()
    optimizer = ADana(model.parameters(), lr=1e-2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).square().sum()
        loss.backward()
        return loss

    first, second = optimizer.step(closure), optimizer.step(closure)
    assert first.detach() > second.detach()


def test_rounding_at_random_keeps_small_updates_in_the_mean():
    for fused in (None, False):
        means = []
        for rounding in (False, True, "moments"):
            p = nn.Parameter(torch.ones(20_000, dtype=torch.bfloat16))
            optimizer = ADana([p], lr=1e-5, fused=fused, stochastic_rounding=rounding)
            generator = torch.Generator().manual_seed(0)
            for _ in range(20):
                p.grad = (1 + 0.1 * torch.randn(20_000, generator=generator)).bfloat16()
                optimizer.step()
            means.append(1 - float(p.detach().float().mean()))
        exact = nn.Parameter(torch.ones(20_000))
        optimizer = ADana([exact], lr=1e-5)
        generator = torch.Generator().manual_seed(0)
        for _ in range(20):
            exact.grad = (1 + 0.1 * torch.randn(20_000, generator=generator)).bfloat16().float()
            optimizer.step()
        want = 1 - float(exact.detach().double().mean())
        assert means[0] == 0  # to the nearest nothing moves
        assert means[1] == pytest.approx(want, rel=0.1)
        assert means[2] == pytest.approx(want, rel=0.1)


def test_decay_by_omega_is_omega_over_time_and_bounded_by_the_rate():
    model = net()
    group = ADana(model.parameters(), lr=1.0, omega=4.0, horizon=1000).param_groups[0]
    assert group["weight_decay"] == pytest.approx(0.04)
    assert decay_rate(group, 300) == pytest.approx(4.0 / (100 + 300))
    group["lr"] = 0.5
    assert decay_factor(group, 300) == pytest.approx(1 - 0.5 * 0.01)
    group = ADana(model.parameters(), lr=1e-3, omega=4.0, horizon=20).param_groups[0]
    assert decay_rate(group, 1) == pytest.approx(2e-3)
    own = [{"params": [model[0].weight], "weight_decay": 0.0}, {"params": [model[2].weight]}]
    optimizer = ADana(own, lr=1e-2, omega=4.0, horizon=1000)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.0, 0.04]


def test_a_decay_that_was_meant_for_adamw_is_named(caplog):
    ADana(net().parameters(), weight_decay=0.1)
    assert "weight_decay 0.1 takes 0.1 of each weight" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": "1e-3"}, "lr is '1e-3'; it must be a number, finite and not negative"),
        ({"delta": 0.0}, "delta is 0.0; it must be finite and above 0"),
        ({"kappa": 1.5}, "kappa is 1.5; it must be from 0 to 1"),
        ({"eps": math.nan}, "eps is nan"),
        ({"weight_decay": True}, "weight_decay is True"),
        ({"weight_decay": 2.0}, "takes 2 of each weight"),
        ({"omega": 4.0, "weight_decay": 0.1}, "omega and weight_decay both"),
        ({"omega": 4.0}, "omega needs horizon, the length of the run in steps, or wd_ts"),
        ({"omega": 4.0, "horizon": 100, "wd_ts": 10.0}, "horizon and wd_ts both"),
        ({"horizon": 100}, "without omega"),
        ({"stochastic_rounding": "all"}, "stochastic_rounding is 'all'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        ADana(net().parameters(), **settings)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: AdEMAMix(net().parameters(), betas=(0.9, 0.999)), "betas is"),
        (lambda: AdamWDecayingWD(net().parameters(), betas=(0.9, 1.0)), "betas is"),
        (lambda: AutoDana(net().parameters(), kappa_min=0.9, kappa_max=0.8), "kappa_min"),
        (lambda: ADana([{"params": [nn.Parameter(torch.ones(2))], "kappa": 2.0}]), "kappa is 2.0"),
        (lambda: ADana([nn.Parameter(torch.ones(2, dtype=torch.complex64))]), "real numbers"),
        (lambda: SNOO(ADana(net().parameters()), k=0), "k is 0"),
        (lambda: SNOO(net()), "inner is Sequential"),
        (lambda: build_optimizer(net(), "adana"), "is a Sequential; give the name first, then the model"),
        (lambda: build_optimizer("lion", net(), betas=0.9), "lion: betas is 0.9; it must be several numbers"),
        (lambda: build_optimizer("adana", net(), fused="maybe"), "fused is 'maybe'"),
        (lambda: build_optimizer("adamw", net(), omega=4.0), "adamw: omega needs horizon"),
        (lambda: build_optimizer("adamw", net(), horizon=9), "adamw: horizon is 9 without omega"),
        (lambda: build_optimizer("soap", net(), omega=4.0, horizon=0), "soap: horizon is 0"),
        (lambda: lr_scheduler(ADana(net()), "cos"), "schedule is a str; it must be what get_schedule"),
    ],
)
def test_what_cannot_be_optimized_is_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_sparse_gradients_and_states_of_others_are_refused():
    table = nn.Embedding(4, 3, sparse=True)
    optimizer = ADana(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse"):
        optimizer.step()
    other = ADana([nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match="shape of another model"):
        optimizer.load_state_dict(other.state_dict())
    params = other.param_groups[0]["params"]
    for foreign in (torch.optim.AdamW(params), AdamWDecayingWD(params)):
        with pytest.raises(ValueError, match="ADana: the state of another optimizer"):
            other.load_state_dict(foreign.state_dict())
        with pytest.raises(ValueError, match="AdamWDecayingWD: the state of another optimizer"):
            AdamWDecayingWD(params).load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="DanaStar: the state of another optimizer, without tau"):
        DanaStar(params).load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    "build", [ADana, DanaStarMK4, AdEMAMix, lambda params: build_optimizer("adamw", params)]
)
def test_a_parameter_that_changed_its_shape_ends_the_step_in_words(build):
    p = nn.Parameter(torch.ones(4))
    optimizer = build([p])
    for size in (4, 9):
        p.grad, p.data = None, torch.ones(size)
        p.grad = torch.ones(size)
        if size == 4:
            optimizer.step()
    with pytest.raises(ValueError, match="build the optimizer anew"):
        optimizer.step()


def test_rates_are_numbers_of_numpy_too_and_those_that_timm_scales_have_a_scaled_peak():
    p = nn.Parameter(torch.ones(4))
    optimizer = ADana([{"params": [p], "lr_scale": 0.5}], lr=np.float32(0.25), omega=4.0, horizon=10)
    group = optimizer.param_groups[0]
    group["lr"] *= group["lr_scale"]
    assert group["peak_lr"] == 0.125
    assert decay_factor(group, 1) == 1 - decay_rate(group, 1)
