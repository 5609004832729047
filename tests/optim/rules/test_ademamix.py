"""AdEMAMix against an oracle in numpy, its warm-ups, and the ladder's settings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.optim import AdEMAMix, AdEMAMixDecayingWD
from danalab.optim.rules.ademamix import mixing_weight, slow_rate

WAYS = {"eager": {"fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def oracle(cls, p, grads, lrs, s):
    """All steps, one coordinate at a time, averages written as beta x + (1 - beta) g."""
    p, (b1, b2, b3) = p.copy(), s["betas"]

    def half_life(beta):
        return math.log(0.5) / math.log(beta + 1e-8) - 1

    for j in range(p.size):
        m = slow = v = 0.0
        for t, (g, lr) in enumerate(zip(grads[:, j], lrs, strict=True), 1):
            alpha, beta = s["alpha"], b3
            if s["alpha_warmup"] is not None and t < s["alpha_warmup"]:
                alpha *= t / s["alpha_warmup"]
            if s["beta3_warmup"] is not None and t < s["beta3_warmup"]:
                x = t / s["beta3_warmup"]
                beta = 0.5 ** (1 / ((1 - x) * half_life(b1) + x * half_life(b3) + 1))
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            slow = beta * slow + (1 - beta) * g
            u = (m / (1 - b1**t) + s["gamma3"] * alpha * slow) / ((v / (1 - b2**t)) ** 0.5 + s["eps"])
            if cls is AdEMAMix:
                p[j] -= lr * (u + s["weight_decay"] * p[j])
            else:
                p[j] *= 1 - lr / lrs[0] * s["weight_decay"] / (1 + t / s["wd_ts"])
                p[j] -= lr * u
    return p


@given(
    cls=st.sampled_from([AdEMAMix, AdEMAMixDecayingWD]),
    way=st.sampled_from(list(WAYS)),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    betas=st.tuples(st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.9, 0.999]), st.floats(0.0, 0.9999)),
    warmups=st.tuples(*[st.one_of(st.none(), st.integers(1, 30))] * 2),
    alpha=st.floats(0.0, 8.0),
    gamma3=st.floats(0.0, 2.0),
    decay=st.floats(0.0, 0.5),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=50, deadline=None)
def test_any_settings_equal_the_oracle(cls, way, dtype, betas, warmups, alpha, gamma3, decay, seed):
    chosen = {"betas": betas, "alpha": alpha, "gamma3": gamma3, "weight_decay": decay, "eps": 1e-8}
    chosen |= {"alpha_warmup": warmups[0], "beta3_warmup": warmups[1]}
    chosen |= {"wd_ts": 4.0} if cls is AdEMAMixDecayingWD else {}
    rng = np.random.default_rng(seed)
    start, grads = (rng.normal(size=size).astype(np.float32).astype(float) for size in (13, (12, 13)))
    lrs = 0.02 * np.linspace(1.0, 0.1, 12)
    p = torch.tensor(start, dtype=dtype, requires_grad=True)
    optimizer = cls([p], lr=lrs[0], **chosen, **WAYS[way])
    for g, lr in zip(grads, lrs, strict=True):
        optimizer.param_groups[0]["lr"] = float(lr)
        p.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    tolerance = 1e-11 if dtype == torch.float64 else 3e-5
    want = oracle(cls, start, grads, lrs, chosen)
    np.testing.assert_allclose(p.detach().double().numpy(), want, rtol=tolerance, atol=tolerance)


GROUP = {"betas": (0.9, 0.999, 0.9999), "alpha": 5.0, "alpha_warmup": 100, "beta3_warmup": 200}


def test_weight_of_the_slow_momentum_grows_from_zero_in_a_line():
    assert [mixing_weight(GROUP, t) for t in (0, 20, 100, 1000)] == [0.0, 1.0, 5.0, 5.0]
    assert mixing_weight({**GROUP, "alpha_warmup": None}, 1) == 5.0


def test_slow_rate_grows_from_the_fast_one_in_half_life_and_ends_exactly():
    assert slow_rate(GROUP, 0) == pytest.approx(0.9, abs=1e-7)
    assert slow_rate(GROUP, 200) == 0.9999
    assert slow_rate({**GROUP, "beta3_warmup": None}, 1) == 0.9999
    half_lives = [math.log(0.5) / math.log(slow_rate(GROUP, t)) for t in (50, 100, 150)]
    assert half_lives[1] - half_lives[0] == pytest.approx(half_lives[2] - half_lives[1], rel=1e-3)


def test_clocks_on_the_device_give_the_same_schedules():
    for t in (1, 99, 100, 199, 200, 500):
        on_device = torch.tensor(float(t), dtype=torch.float64)
        assert slow_rate(GROUP, on_device).item() == pytest.approx(slow_rate(GROUP, t), abs=1e-15)
        assert mixing_weight(GROUP, on_device).item() == pytest.approx(mixing_weight(GROUP, t), abs=1e-15)


def test_without_slow_momentum_it_is_torch_adamw():
    finished = []
    for cls, more in ((torch.optim.AdamW, {}), (AdEMAMix, {"alpha": 0.0})):
        p = torch.ones(5, dtype=torch.float64, requires_grad=True)
        betas = (0.9, 0.99) if cls is torch.optim.AdamW else (0.9, 0.99, 0.5)
        optimizer = cls([p], lr=1e-2, betas=betas, weight_decay=0.1, **more)
        for seed in range(6):
            p.grad = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
        finished.append(p.detach())
    torch.testing.assert_close(*finished, rtol=1e-13, atol=1e-13)


def test_coefficients_are_those_of_the_last_step():
    p = torch.ones(2, requires_grad=True)
    optimizer = AdEMAMix([p], lr=0.1, weight_decay=0.5, alpha=4.0, alpha_warmup=4, beta3_warmup=4)
    for _ in range(2):
        p.grad = torch.ones(2)
        optimizer.step()
    found = optimizer.coefficients()
    assert (found["t"], found["lr"], found["lambda"], found["alpha"]) == (2, 0.1, 0.5, 2.0)
    assert 0.9 < found["beta3"] < 0.9999
