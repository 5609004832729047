"""The update against an oracle in numpy that shares no code with it, for any settings and any back end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.errors import UserError
from danalab.optim import AdamWDecayingWD, ADana, DanaMK4, DanaStar, DanaStarMK4

BACKENDS = {"eager": {"fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
ALL_WAYS = {**BACKENDS, "capturable": {"capturable": True}}
FAMILY = {"adana": ADana, "dana-mk4": DanaMK4, "dana-star": DanaStar, "dana-star-mk4": DanaStarMK4}


def oracle(name, p, grads, lrs, s):
    """All steps of a member of the family on one parameter, coordinate by coordinate, with the clip as a minimum."""
    p = p.copy()
    for j in range(p.size):
        m = v = tau = 0.0
        for t, (g, lr) in enumerate(zip(grads[:, j], lrs, strict=True), 1):
            a = s["delta"] / (s["delta"] + t)
            b = 1 - a if s["beta2"] is None else s["beta2"]
            cooled = s["delta"] / (s["delta"] + t * (lr / lrs[0]) ** s["momentum_cooldown"])
            m, v = (1 - cooled) * m + cooled * g, b * v + (1 - b) * g**2
            r = (v if s["beta2"] is None else v / (1 - b**t)) ** 0.5 + s["eps"]
            q, root, time = 1.0, 1.0, 1.0 + t
            if "star" in name:
                tau = (1 - a) * tau + a * abs(g) / (abs(g) + r)
                c = min(tau, 0.5)
                q = max(c / (1 - c), 1 / (1 + t))
                root, time = q**0.5, max(tau * t, 1.0)
            u = abs(m) * root / r
            big = time ** (1 - s["kappa"]) * u / q
            if "mk4" in name:
                big = min(big, s["clipsnr"])
            push = q * big + s["alpha_offset"] * u
            p[j] -= lr * (root * g / r + s["gamma3"] * np.sign(m) * push)
            decay = s["weight_decay"] / (1 + t / s["wd_ts"]) if s["wd_ts"] else s["weight_decay"]
            if s["decay_bound"]:
                decay = min(decay, s["decay_bound"] * lrs[0], 0.5)
            p[j] *= 1 - lr / lrs[0] * decay
    return p


number = st.floats(allow_nan=False, allow_infinity=False, width=32)
family_settings = st.fixed_dictionaries(
    {
        "delta": st.floats(0.5, 32.0),
        "kappa": st.floats(0.0, 1.0),
        "eps": st.sampled_from([1e-8, 1e-4]),
        "gamma3": st.floats(0.0, 2.0),
        "alpha_offset": st.sampled_from([0.0, 0.5, 1.0]),
        "weight_decay": st.floats(0.0, 0.5),
        "wd_ts": st.one_of(st.none(), st.floats(1.0, 100.0)),
        "decay_bound": st.one_of(st.none(), st.floats(0.0, 20.0)),
        "beta2": st.one_of(st.none(), st.floats(0.5, 0.95)),
        "momentum_cooldown": st.one_of(st.just(0.0), st.floats(0.1, 3.0)),
    }
)


@given(
    name=st.sampled_from(list(FAMILY)),
    backend=st.sampled_from(list(ALL_WAYS)),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    chosen=family_settings,
    clipsnr=st.floats(0.1, 4.0),
    seed=st.integers(0, 2**16),
    zeros=st.floats(0.0, 0.9),
)
@settings(max_examples=60, deadline=None)
def test_any_member_equals_the_oracle(name, backend, dtype, chosen, clipsnr, seed, zeros):
    chosen = {**chosen, "clipsnr": clipsnr} if "mk4" in name else chosen
    rng = np.random.default_rng(seed)
    steps, size = 12, 21
    start = rng.normal(size=size).astype(np.float32).astype(float)
    grads = (rng.normal(size=(steps, size)) * (rng.random((steps, size)) > zeros)).astype(np.float32).astype(float)
    lrs = 0.02 * np.linspace(1.0, 0.1, steps)
    p = torch.tensor(start, dtype=dtype, requires_grad=True)
    optimizer = FAMILY[name]([p], lr=lrs[0], **chosen, **ALL_WAYS[backend])
    for g, lr in zip(grads, lrs, strict=True):
        optimizer.param_groups[0]["lr"] = float(lr)
        p.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    want = oracle(name, start, grads, lrs, chosen)
    tolerance = 1e-11 if dtype == torch.float64 else 3e-5
    np.testing.assert_allclose(p.detach().double().numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.sample(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*FAMILY, "adamw-decaying-wd"])
def test_back_ends_agree_to_1e6_over_100_steps_in_float32(name, backend):
    finished = []
    for flags in ({"fused": False}, BACKENDS[backend]):
        generator = torch.Generator().manual_seed(0)
        shapes = [(64, 33), (33,), (7, 5, 3)]
        params = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
        cls = {**FAMILY, "adamw-decaying-wd": AdamWDecayingWD}[name]
        cooldown = {"momentum_cooldown": 1.0} if name in FAMILY else {}
        optimizer = cls(params, lr=3e-3, omega=4.0, horizon=200, **cooldown, **flags)
        for step in range(100):
            optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step / 200)
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()
        finished.append(torch.cat([p.detach().flatten() for p in params]))
    plain, other = finished
    assert (other - plain).abs().max() <= 1e-6 * plain.abs().max()


@pytest.mark.parametrize("flags", BACKENDS.values(), ids=BACKENDS)
def test_adam_without_decay_is_torch_adamw(flags):
    grads = torch.randn(30, 50, generator=torch.Generator().manual_seed(1))
    finished = []
    for cls, extra in ((torch.optim.AdamW, {"weight_decay": 0.0}), (AdamWDecayingWD, flags)):
        p = torch.ones(50, requires_grad=True)
        optimizer = cls([p], lr=1e-2, betas=(0.9, 0.95), **extra)
        for g in grads:
            p.grad = g.clone()
            optimizer.step()
        finished.append(p.detach())
    torch.testing.assert_close(*finished, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FAMILY)
def test_alpha_offset_0_is_the_printed_formula(name):
    """Without a clip and at kappa 1, alpha(t) = 1, the implementation's coefficient is 2 and the formula's 1."""
    finished = []
    for offset, gamma3 in ((1.0, 0.5), (0.0, 1.0)):
        p = torch.ones(4, dtype=torch.float64, requires_grad=True)
        clip = {"clipsnr": 1e9} if "mk4" in name else {}
        optimizer = FAMILY[name]([p], lr=0.1, kappa=1.0, alpha_offset=offset, gamma3=gamma3, fused=False, **clip)
        for g in torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)):
            p.grad = g
            optimizer.step()
        finished.append(p.detach())
    torch.testing.assert_close(*finished, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("flags", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("name", FAMILY)
def test_maximize_is_descent_on_the_negative(name, flags):
    g = torch.randn(3, 17, generator=torch.Generator().manual_seed(3))
    finished = []
    for sign, maximize in ((-1, False), (1, True)):
        p = torch.ones(17, requires_grad=True)
        optimizer = FAMILY[name]([p], lr=1e-2, maximize=maximize, **flags)
        for row in g:
            p.grad = sign * row
            optimizer.step()
        finished.append(p.detach())
    torch.testing.assert_close(*finished, rtol=0, atol=0)


@pytest.mark.parametrize("beta2", [-0.1, 1.0, "0.9"])
def test_a_beta2_that_is_no_rate_is_refused(beta2):
    with pytest.raises(UserError, match="beta2 is"):
        ADana([torch.ones(1, requires_grad=True)], beta2=beta2)


@pytest.mark.parametrize("flags", ALL_WAYS.values(), ids=ALL_WAYS)
@pytest.mark.parametrize("name", FAMILY)
def test_the_momentum_is_the_gradient_where_the_learning_rate_has_decayed_to_0(name, flags):
    """The memory t s^c / delta of the first moment has shrunk to one step; the other averages keep theirs."""
    p = torch.ones(4, dtype=torch.float64, requires_grad=True)
    plain = p.detach().clone().requires_grad_()
    cooled = FAMILY[name]([p], lr=0.1, momentum_cooldown=1.0, **flags)
    other = FAMILY[name]([plain], lr=0.1, **flags)
    for lr in (0.1, 0.1, 0.05, 0.0):
        g = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(int(100 * lr)))
        for optimizer, weight in ((cooled, p), (other, plain)):
            optimizer.param_groups[0]["lr"] = lr
            weight.grad = g.clone()
            optimizer.step()
    torch.testing.assert_close(cooled.state[p]["exp_avg"], p.grad, rtol=1e-15, atol=0)
    for key in set(cooled.rule.moments) - {"exp_avg"}:
        assert torch.equal(cooled.state[p][key], other.state[plain][key])
    assert cooled.coefficients()["beta"] == 0
