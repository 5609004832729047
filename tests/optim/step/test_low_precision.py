"""Parameters in 16 bits: float32 state and arithmetic, one rounding, optionally a random one."""

from __future__ import annotations

import pytest
import torch

from danalab.optim import AdamWDecayingWD, ADana, AdEMAMix, DanaMK4, DanaStar, DanaStarMK4
from danalab.optim.step.backends.rounding import rounding_seed, stochastic_round

FLAGS = [{"fused": False}, {"foreach": True}, {"fused": True}]
WAYS = ["eager", "foreach", "fused"]
NARROW = [torch.bfloat16, torch.float16]


def steps(cls, dtype, flags, rounding=False, count=4):
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(37, 11, generator=generator).to(dtype).requires_grad_()
    optimizer = cls([p], lr=0.02, weight_decay=0.1, stochastic_rounding=rounding, **flags)
    for _ in range(count):
        p.grad = torch.randn(p.shape, generator=generator).to(dtype)
        optimizer.step()
    return p, optimizer


@pytest.mark.parametrize("flags", FLAGS, ids=WAYS)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("cls", [ADana, DanaStarMK4])
def test_one_step_is_the_float32_step_rounded_once(cls, dtype, flags):
    narrow, optimizer = steps(cls, dtype, flags, count=1)
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(37, 11, generator=generator).to(dtype).float().requires_grad_()
    wide.grad = torch.randn(wide.shape, generator=generator).to(dtype).float()
    cls([wide], lr=0.02, weight_decay=0.1, fused=False).step()
    assert optimizer.state[narrow]["exp_avg"].dtype == torch.float32
    # An ulp of float32 may tip a value that lies between two 16-bit ones.
    assert (narrow == wide.detach().to(dtype)).float().mean() > 0.99
    torch.testing.assert_close(narrow, wide.to(dtype))


@pytest.mark.parametrize("flags", FLAGS, ids=WAYS)
def test_moments_do_not_freeze_late_in_a_run(flags):
    p = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    optimizer = ADana([p], lr=1e-3, **flags)
    optimizer.state[p]["step"].fill_(100_000)
    optimizer.state[p]["exp_avg"].fill_(1.0)
    for _ in range(200):
        p.grad = torch.full_like(p, 2.0)
        optimizer.step()
    assert optimizer.state[p]["exp_avg"].item() == pytest.approx(1.016, abs=1e-3)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("value", [1.0 + 1e-4, -3.1415, 1e-5, 6.2e-5, 300.7])
def test_stochastic_rounding_has_the_right_mean_and_only_two_outcomes(dtype, value):
    x = torch.full((200_000,), value)
    rounded = stochastic_round(x, dtype, rounding_seed(7, 3))
    outcomes = rounded.unique().float()
    assert len(outcomes) == 2
    assert outcomes[0] < value < outcomes[1]
    spacing = (outcomes[1] - outcomes[0]).item()
    assert abs(rounded.double().mean().item() - x[0].item()) < 5 * spacing / (2 * 200_000**0.5)


@pytest.mark.parametrize("dtype", NARROW)
def test_stochastic_rounding_keeps_what_needs_no_rounding(dtype):
    exact = torch.tensor([0.0, -0.0, 1.0, -2.5, float("inf"), float("-inf"), 2.0**-14])
    assert torch.equal(stochastic_round(exact, dtype, 5).float(), exact)
    assert stochastic_round(torch.tensor([float("nan")]), dtype, 5).isnan().all()


def test_noise_is_fresh_for_every_step_and_parameter():
    x = torch.full((4000,), 1.0 + 2**-8)
    up = [stochastic_round(x, torch.bfloat16, rounding_seed(t, i)) > 1.0 for t in (1, 2) for i in (0, 1)]
    for a in range(4):
        for b in range(a):
            assert abs((up[a] == up[b]).float().mean().item() - 0.5) < 0.05


@pytest.mark.parametrize("dtype", NARROW)
def test_stochastic_rounding_is_the_same_in_every_way_to_compute(dtype):
    found = [steps(ADana, dtype, flags, rounding=True)[0] for flags in FLAGS]
    for other in found[1:]:
        assert (other == found[0]).float().mean() > 0.98
        torch.testing.assert_close(other, found[0], rtol=2e-2, atol=2e-2)


def test_a_parameter_without_dimensions_is_rounded_at_random_with_a_clock_on_the_device_too():
    def step(**flags):
        p = torch.tensor(1.0, dtype=torch.bfloat16, requires_grad=True)
        p.grad = torch.tensor(0.3, dtype=torch.bfloat16)
        ADana([p], lr=0.02, stochastic_rounding=True, **flags).step()
        return p.item()

    assert step(capturable=True) == step(fused=False)


@pytest.mark.parametrize("flags", FLAGS, ids=WAYS)
def test_small_updates_are_lost_to_the_nearest_and_kept_by_stochastic_rounding(flags):
    moved = {}
    for rounding in (False, True):
        p = torch.ones(20_000, dtype=torch.bfloat16, requires_grad=True)
        optimizer = ADana([p], lr=1e-4, gamma3=0.0, stochastic_rounding=rounding, **flags)
        for _ in range(10):
            p.grad = torch.ones_like(p)
            optimizer.step()
        moved[rounding] = (1 - p.detach().float()).mean().item()
    wide = torch.ones(1, requires_grad=True)
    optimizer = ADana([wide], lr=1e-4, gamma3=0.0)
    for _ in range(10):
        wide.grad = torch.ones_like(wide)
        optimizer.step()
    assert moved[False] == 0
    assert moved[True] == pytest.approx(1 - wide.item(), rel=0.1)


@pytest.mark.parametrize("flags", FLAGS, ids=WAYS)
def test_stochastic_rounding_repeats_exactly(flags):
    first, second = (steps(DanaStarMK4, torch.bfloat16, flags, rounding=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("cls", [ADana, DanaMK4, DanaStar, DanaStarMK4, AdamWDecayingWD, AdEMAMix])
def test_a_run_in_16_bits_tracks_the_run_in_32(cls, dtype):
    """Noisy least squares in 4000 coordinates with the same noise: what sets the two runs apart is rounding alone."""
    generator = torch.Generator().manual_seed(0)
    start, goal = torch.randn(2, 4000, generator=generator).unbind()
    start = start.to(dtype).float()

    def run(dtype):
        p = start.to(dtype, copy=True).requires_grad_()
        optimizer = cls([p], lr=3e-3, weight_decay=1e-3, stochastic_rounding=dtype != torch.float32, fused=False)
        noise = torch.Generator().manual_seed(1)
        for _ in range(300):
            p.grad = (p.detach().float() - goal + torch.randn(goal.shape, generator=noise)).to(dtype)
            optimizer.step()
        return p.detach().float(), optimizer.state[p]["exp_avg"]

    (wide, m), (narrow, its_m) = run(torch.float32), run(dtype)
    apart, way = narrow - wide, wide - start
    assert way.square().mean() > 100 * apart.square().mean()  # it went nearly the same way,
    assert apart.mean().abs() < 4 * apart.std() / len(apart) ** 0.5  # to both sides of it alike,
    risk, its_risk = ((p - goal).square().mean() for p in (wide, narrow))
    assert its_risk == pytest.approx(risk.item(), rel=0.01)  # as far down,
    assert torch.corrcoef(torch.stack([m, its_m]))[0, 1] > 0.95  # with the same averages
