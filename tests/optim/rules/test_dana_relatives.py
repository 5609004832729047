"""Dana, SignDana and AutoDana against oracles, and AutoDana's choice of kappa."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.optim import ADana, AutoDana, Dana, SignDana
from danalab.optim.optimizers.stats import noise_floor

WAYS = {"eager": {"fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def oracle(cls, p, grads, lrs, s):
    p = p.copy()
    for j in range(p.size):
        m = v = 0.0
        for t, (g, lr) in enumerate(zip(grads[:, j], lrs, strict=True), 1):
            a = s["delta"] / (s["delta"] + t)
            cooled = s["delta"] / (s["delta"] + t * (lr / lrs[0]) ** s.get("momentum_cooldown", 0.0))
            m, v = (1 - cooled) * m + cooled * g, (1 - a) * v + a * g * g
            if cls is AutoDana:
                r = v**0.5 + 1e-8
                noise = s["delta"] ** 2 / ((2 * s["delta"] - 1) * t + s["delta"] ** 2)
                share = max(0.0, 1 - s["significance"] ** 2 * noise / (m / r) ** 2) if m else 0.0
                kappa = s["kappa_max"] - (s["kappa_max"] - s["kappa_min"]) * share
                step = g / r + s["gamma3"] * ((1 + t) ** (1 - kappa) + s["alpha_offset"]) * m / r
            else:
                weight = s["gamma3"] * ((1 + t) ** (1 - s["kappa"]) + s["alpha_offset"])
                step = g + weight * m if cls is Dana else np.sign(g) + weight * np.sign(m)
            p[j] -= lr * step
            p[j] *= 1 - lr / lrs[0] * s["weight_decay"] / (1 + t / s["wd_ts"])
    return p


@given(
    cls=st.sampled_from([Dana, SignDana, AutoDana]),
    way=st.sampled_from(list(WAYS)),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    delta=st.floats(0.5, 32.0),
    kappas=st.tuples(st.floats(0.0, 0.8), st.floats(0.8, 1.0)),
    offset=st.sampled_from([0.0, 1.0]),
    significance=st.floats(0.1, 3.0),
    gamma3=st.floats(0.0, 2.0),
    seed=st.integers(0, 2**16),
    drift=st.sampled_from([0.0, 0.5, 3.0]),
)
@settings(max_examples=60, deadline=None)
def test_any_settings_equal_the_oracle(cls, way, dtype, delta, kappas, offset, significance, gamma3, seed, drift):
    chosen = {"delta": delta, "gamma3": gamma3, "alpha_offset": offset, "weight_decay": 0.2, "wd_ts": 5.0}
    if cls is AutoDana:
        chosen |= {"kappa_min": kappas[0], "kappa_max": kappas[1], "significance": significance}
    else:
        chosen |= {"kappa": kappas[1], "momentum_cooldown": kappas[0]}
    rng = np.random.default_rng(seed)
    start = rng.normal(size=21).astype(np.float32).astype(float)
    grads = (rng.normal(size=(12, 21)) + drift).astype(np.float32).astype(float)
    lrs = 0.02 * np.linspace(1.0, 0.1, 12)
    p = torch.tensor(start, dtype=dtype, requires_grad=True)
    optimizer = cls([p], lr=lrs[0], **chosen, **WAYS[way])
    for g, lr in zip(grads, lrs, strict=True):
        optimizer.param_groups[0]["lr"] = float(lr)
        p.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    tolerance = 1e-11 if dtype == torch.float64 else 5e-5
    want = oracle(cls, start, grads, lrs, chosen)
    np.testing.assert_allclose(p.detach().double().numpy(), want, rtol=tolerance, atol=tolerance)


def test_zero_gradients_move_nothing_and_stay_finite():
    for cls in (Dana, SignDana, AutoDana):
        for flags in WAYS.values():
            p = torch.ones(40, requires_grad=True)
            optimizer = cls([p], lr=0.1, **flags)
            for _ in range(3):
                p.grad = torch.zeros(40)
                optimizer.step()
            assert torch.equal(p, torch.ones(40))


def test_dana_is_linear_in_the_gradients():
    finished = []
    for scale in (1.0, 3.0):
        p = torch.zeros(7, dtype=torch.float64, requires_grad=True)
        optimizer = Dana([p], lr=0.1)
        for seed in range(5):
            p.grad = scale * torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
        finished.append(p.detach() / scale)
    torch.testing.assert_close(*finished, rtol=1e-13, atol=1e-13)


def test_signs_do_not_see_the_size_of_gradients():
    finished = []
    for scale in (1.0, 1e-6):
        p = torch.zeros(50, requires_grad=True)
        optimizer = SignDana([p], lr=0.1)
        for seed in range(5):
            p.grad = scale * torch.randn(50, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
        finished.append(p.detach())
    torch.testing.assert_close(*finished)


# ---- the choice of kappa ----


def kappas(drift: float, noise: float, steps: int = 300, size: int = 4000, **settings: float) -> float:
    """Mean kappa after `steps` gradients drift + noise x normal."""
    generator = torch.Generator().manual_seed(0)
    p = torch.zeros(size, requires_grad=True)
    optimizer = AutoDana([p], lr=1e-3, fused=False, **settings)
    for _ in range(steps):
        p.grad = drift + noise * torch.randn(size, generator=generator)
        optimizer.step()
    return optimizer.collect_stats()["kappa"].item()


@pytest.mark.parametrize("delta", [2.0, 8.0, 16.0])
@pytest.mark.parametrize("t", [1, 3, 10, 100, 1000])
def test_noise_floor_is_the_mean_square_of_an_average_of_noise(delta, t):
    exact = 0.0
    for step in range(1, t + 1):
        a = delta / (delta + step)
        exact = (1 - a) ** 2 * exact + a * a
    assert noise_floor(t, delta) == pytest.approx(exact, rel=0.03 if delta >= 8 else 0.3)


def test_pure_noise_leaves_kappa_at_its_largest():
    assert kappas(0.0, 1.0) > 0.99
    assert kappas(0.0, 1e-6) > 0.99  # whatever its size


@pytest.mark.slow
def test_pure_signal_brings_kappa_down_to_its_smallest():
    assert kappas(1.0, 0.0) < 0.77
    assert kappas(1.0, 0.0, steps=3000, size=10) == pytest.approx(0.75, abs=1e-2)


@pytest.mark.slow
def test_kappa_falls_with_the_signal_to_noise_ratio_and_with_the_time_to_see_it():
    by_drift = [kappas(drift, 1.0) for drift in (0.0, 0.2, 0.5, 1.0, 3.0)]
    assert by_drift == sorted(by_drift, reverse=True)
    assert kappas(0.2, 1.0, steps=1000) < kappas(0.2, 1.0, steps=100) - 0.02


def test_signal_in_some_coordinates_is_theirs_alone():
    generator = torch.Generator().manual_seed(0)
    drift = torch.zeros(2000)
    drift[:500] = 1.0
    moved = []
    for cls, more in ((AutoDana, {}), (ADana, {"kappa": 1.0})):
        p = torch.zeros(2000, requires_grad=True)
        optimizer = cls([p], lr=1e-3, **more)
        generator.manual_seed(0)
        for _ in range(300):
            p.grad = drift + torch.randn(2000, generator=generator)
            optimizer.step()
        moved.append(p.detach())
    auto, plain = moved
    assert auto[:500].mean() < 1.4 * plain[:500].mean()  # both negative: it has gone further
    torch.testing.assert_close(auto[500:].abs().mean(), plain[500:].abs().mean(), rtol=0.1, atol=0)


def test_equal_bounds_are_adana_with_that_kappa():
    finished = []
    for cls, more in ((AutoDana, {"kappa_min": 0.85, "kappa_max": 0.85}), (ADana, {"kappa": 0.85})):
        p = torch.ones(9, dtype=torch.float64, requires_grad=True)
        optimizer = cls([p], lr=0.1, **more)
        for seed in range(5):
            p.grad = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
        finished.append(p.detach())
    torch.testing.assert_close(*finished, rtol=1e-13, atol=1e-13)


def test_they_report_what_they_have():
    p = torch.ones(4, requires_grad=True)
    for cls, want in ((Dana, {"momentum_norm", "effective_time"}), (SignDana, {"momentum_norm", "effective_time"})):
        optimizer = cls([p], lr=0.1)
        p.grad = torch.ones(4)
        optimizer.step()
        assert set(optimizer.collect_stats()) == want
        assert optimizer.coefficients()["alpha"] == 2**0.15
        assert optimizer.update_rms().item() > 0
    optimizer = AutoDana([p], lr=0.1)
    optimizer.step()
    assert {"kappa", "snr", "damped"} <= set(optimizer.collect_stats())
    assert optimizer.coefficients()["alpha"] == 2**0.25
