"""Numbers for logging: cheap, right, and on request."""

from __future__ import annotations

import pytest
import torch

from danalab.errors import UserError
from danalab.optim import AdamWDecayingWD, ADana, DanaMK4, DanaStar, DanaStarMK4

FAMILY = [ADana, DanaMK4, DanaStar, DanaStarMK4]


def trained(cls, steps=5, **settings):
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator).requires_grad_() for shape in ((6, 5), (7,))]
    optimizer = cls(params, lr=0.1, **settings)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        before = [p.detach().clone() for p in params]
        optimizer.step()
    return optimizer, params, before


@pytest.mark.parametrize("cls", FAMILY)
def test_coefficients_are_those_of_the_last_step(cls):
    optimizer, _, _ = trained(cls, weight_decay=0.2, wd_ts=10.0)
    optimizer.param_groups[0]["lr"] = 0.05
    found = optimizer.coefficients()
    want = {"t": 5, "lr": 0.05, "schedule": 0.5, "lambda": 0.2 / 1.5, "beta": 1 - 8 / 13, "alpha": 6**0.15}
    assert found == pytest.approx(want)


def test_coefficients_of_a_clock_on_the_device_are_tensors():
    found = trained(ADana, capturable=True, fused=False)[0].coefficients()
    assert found["beta"].item() == pytest.approx(1 - 8 / 13)


def test_adam_reports_its_decay():
    assert trained(AdamWDecayingWD, weight_decay=0.1)[0].coefficients()["lambda"] == 0.1


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("cls", FAMILY)
def test_update_rms_is_that_of_the_step_just_made(cls, maximize):
    optimizer, params, before = trained(cls, maximize=maximize)
    moved = torch.cat([(q - p.detach()).flatten() for p, q in zip(params, before, strict=True)]) / 0.1
    assert optimizer.update_rms().item() == pytest.approx(moved.square().mean().sqrt().item(), rel=1e-4)


def test_update_rms_needs_the_gradients():
    optimizer, _, _ = trained(ADana)
    optimizer.zero_grad()
    with pytest.raises(UserError, match="zero_grad"):
        optimizer.update_rms()


@pytest.mark.parametrize("cls", FAMILY)
def test_stats_are_means_over_all_coordinates(cls):
    optimizer, params, _ = trained(cls)
    stats = {name: value.item() for name, value in optimizer.collect_stats().items()}
    m = torch.cat([optimizer.state[p]["exp_avg"].flatten() for p in params])
    v = torch.cat([optimizer.state[p]["exp_avg_sq"].flatten() for p in params])
    assert stats["momentum_norm"] == pytest.approx(m.norm().item(), rel=1e-5)
    u = m.abs() / (v.sqrt() + 1e-8)
    if cls in (DanaStar, DanaStarMK4):
        tau = torch.cat([optimizer.state[p]["tau"].flatten() for p in params])
        assert stats["tau"] == pytest.approx(tau.mean().item(), rel=1e-5)
        assert 1 <= stats["effective_time"] <= 5
    else:
        assert stats["snr"] == pytest.approx(u.mean().item(), rel=1e-5)
        assert stats["effective_time"] == 5
        damped = 6**0.15 * u
        if cls is DanaMK4:
            assert stats["clipped"] == pytest.approx((damped > 2).float().mean().item())
            damped = damped.clamp(max=2)
        assert stats["damped"] == pytest.approx(damped.mean().item(), rel=1e-5)


def test_stats_leave_the_state_alone():
    optimizer, params, _ = trained(DanaStarMK4)
    before = [optimizer.state[p][key].clone() for p in params for key in optimizer.state[p]]
    optimizer.collect_stats(), optimizer.update_rms()
    after = [optimizer.state[p][key] for p in params for key in optimizer.state[p]]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
