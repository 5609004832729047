"""The momentum's age: one average follows any path that grows by one at most; the buffer is the explicit sum."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from danalab.errors import UserError
from danalab.optim import build_optimizer, optimizer_spec
from danalab.optim.rules.age import AGES, age_path, mixture
from danalab.optim.schedules import get_schedule

PATHS = ("constant(3)", "log_time(8)", "follow(8, 6, 1, 2)", "follow(1, 9, 0.5, 0)")
OPTIMIZERS = ("adana", "dana-mk4", "dana-star-mk4", "dana", "sign-dana", "auto-dana", "muon", "d-muon", "dana-muon",
              "manau")  # fmt: skip
STEPS = 24
SCHEDULE = get_schedule("cos", STEPS, 4)


def kernel(path: str, rates: list[float]) -> tuple[list[float], list[float]]:
    """(ages, weight of each gradient in the momentum after the last step), from the definition alone."""
    ages, weights = [0.0], list[float]()
    for t, s in enumerate(rates, 1):
        age = min(age_path("test", path).path(t, s, *age_path("test", path).numbers), ages[-1] + 1)
        gain = 1 - age / (1 + ages[-1])
        weights = [weight * (1 - gain) for weight in weights] + [gain]
        ages.append(age)
    return ages, weights


def net(dtype=torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)).to(dtype)


def train(model, optimizer, steps=range(STEPS), schedule=SCHEDULE):
    """Steps with random gradients; returns them, of each step."""
    draws = []
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * schedule(step)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p.dtype)
        draws.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
    return draws


def aged(optimizer):
    return [(p, state) for p, state in optimizer.state.items() if "age" in state]


def momentum(state):
    return state["momentum_buffer"] if "momentum_buffer" in state else state["exp_avg"]


@pytest.mark.parametrize("name", [*OPTIMIZERS, "lion", "signum"])
def test_the_momentum_is_the_explicit_sum_over_all_gradients(name):
    path = PATHS[2]
    model = net()
    optimizer: Any = build_optimizer(name, model, lr=0.01, age=path)
    draws = train(model, optimizer)
    ages, weights = kernel(path, [SCHEDULE(step) for step in range(STEPS)])
    mean = sum(weight * (STEPS - i) for i, weight in enumerate(weights, 1)) + (1 - sum(weights)) * STEPS
    assert mean == pytest.approx(ages[-1], rel=1e-12)  # what is not weighted is the zero before the first step
    found = aged(optimizer) or list(optimizer.state.items())  # Lion and Signum have one age for a group
    assert found
    for p, state in found:
        i = next(i for i, each in enumerate(model.parameters()) if each is p)
        want = sum(weight * grads[i] for weight, grads in zip(weights, draws, strict=True))
        torch.testing.assert_close(momentum(state), want, rtol=0, atol=1e-12)
        assert float(state.get("age", ages[-1])) == pytest.approx(ages[-1], rel=1e-12)
    known = [optimizer.coefficients(i) for i in range(len(optimizer.param_groups))]
    assert next(each["age"] for each in known if "age" in each) == pytest.approx(ages[-1], rel=1e-12)


@pytest.mark.parametrize("buffers", [2, 8])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_buffers_are_explicit_sums_with_the_mean_age_of_the_path(name, buffers):
    path, ends = "follow(8, 9, 1, 3)", (2.0, 40.0)
    model = net()
    optimizer = build_optimizer(name, model, lr=0.01, age=path, buffers=buffers, buffer_ages=ends)
    draws = train(model, optimizer)
    ages, _ = kernel(path, [SCHEDULE(step) for step in range(STEPS)])
    group = {"buffers": buffers, "buffer_ages": ends}
    each, mix = [[] for _ in range(buffers)], []
    for t in range(1, STEPS + 1):
        gains, mix = mixture(group, t, ages[t])
        each = [[w * (1 - gain) for w in own] + [gain] for own, gain in zip(each, gains, strict=True)]
    kernels = [sum(share * own[i] for share, own in zip(mix, each, strict=True)) for i in range(STEPS)]
    mean = sum(weight * (STEPS - i) for i, weight in enumerate(kernels, 1)) + (1 - sum(kernels)) * STEPS
    assert mean == pytest.approx(ages[-1], rel=1e-9)
    params = list(model.parameters())
    for p, state in aged(optimizer):
        i = next(i for i, one in enumerate(params) if one is p)
        want = sum(weight * grads[i] for weight, grads in zip(kernels, draws, strict=True))
        torch.testing.assert_close(momentum(state), want, rtol=0, atol=1e-12)


numbers = st.floats(0.0, 300.0)
rates = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=80)


@given(numbers, numbers, st.floats(-1.0, 3.0), numbers, rates)
def test_ages_follow_their_path_grow_by_one_at_most_and_gains_are_shares(delta, peak, power, floor, rates):
    path = age_path("test", f"follow({delta + 0.01}, {peak}, {power}, {floor})")
    age = 0.0
    for t, s in enumerate(rates, 1):
        before, age = age, path.step(t, s, age)
        assert 0 <= age <= before + 1
        assert age == before + 1 or age == path.path(t, s, *path.numbers)
        assert 0 <= 1 - age / (1 + before) <= 1


@given(st.integers(2, 9), st.floats(0.5, 20.0), st.floats(1.1, 200.0), st.integers(1, 5000), st.floats(0.0, 500.0))
def test_mixtures_have_shares_as_weights_and_the_mean_age_that_was_asked_for(count, shortest, ratio, t, mean):
    group = {"buffers": count, "buffer_ages": (shortest, shortest * ratio)}
    gains, weights = mixture(group, t, mean)
    assert all(0 <= share <= 1 for share in (*gains, *weights))
    assert sum(weights) == pytest.approx(1.0)
    first, last = min(t / 2, shortest), min(t / 2, shortest * ratio)
    ages = [first * (last / first) ** (i / (count - 1)) for i in range(count)]
    found = sum(w * age for w, age in zip(weights, ages, strict=True))
    assert found == pytest.approx(min(max(mean, first), last), rel=1e-6)


@pytest.mark.parametrize("name", ["adana", "dana-mk4", "dana-star", "dana-muon"])
def test_log_time_is_the_default_of_the_family(name):
    plain, path = net(), net()
    train(plain, build_optimizer(name, plain, lr=0.01))
    train(path, build_optimizer(name, path, lr=0.01, age="log_time(8)"))
    for a, b in zip(plain.parameters(), path.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_muons_own_momentum_is_an_age_and_its_share_of_the_gradient():
    """Momentum 0.8 is the age 4 with a share of 0.2, once the first gradients are forgotten."""
    models = []
    for settings in ({}, {"age": "constant(4)"}, {"age": "constant(4)", "fresh": 0.2}):
        model = net()
        optimizer = build_optimizer("muon", model, lr=0.01, momentum=0.8, **settings)
        train(model, optimizer, range(121), lambda step: float(step == 120))
        models.append(list(model.parameters()))
    for p, q, r in zip(*models, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-8)
        torch.testing.assert_close(q, r, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["adana", "dana-mk4", "dana-star-mk4", "dana", "auto-dana"])
def test_the_share_of_the_default_changes_nothing(name):
    """With kappa 1 the momentum's weight is a number: g + 2 m (Dana: g + m) has a share of 1/3 (1/2)."""
    kappa = {"kappa_min": 1.0, "kappa_max": 1.0} if name == "auto-dana" else {"kappa": 1.0}
    clip = {"clipsnr": 1e6} if "mk4" in name else {}
    a, b = net(), net()
    train(a, build_optimizer(name, a, lr=0.01, **kappa, **clip))
    train(b, build_optimizer(name, b, lr=0.01, fresh=1 / 2 if name == "dana" else 1 / 3, **kappa, **clip))
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


WAYS = {"eager": {"fused": False, "foreach": False}, "foreach": {"foreach": True}, "native": {"fused": True},
        "capturable": {"capturable": True, "fused": False}}  # fmt: skip


@pytest.mark.sample(10)
@pytest.mark.parametrize("settings", [{}, {"buffers": 3}, {"fresh": 0.2}], ids=["one", "buffers", "fresh"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_way_to_compute_a_step_gives_the_same(name, settings):
    found = {}
    known = optimizer_spec(name).settings
    ways = {way: flags for way, flags in WAYS.items() if flags.keys() <= known.keys()}  # Muon's are not capturable
    for way, flags in ways.items():
        model = net(torch.float32)
        train(model, build_optimizer(name, model, lr=0.01, age=PATHS[2], **settings, **flags))
        found[way] = list(model.parameters())
    for way in ways:
        for p, q in zip(found["eager"], found[way], strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(11)
@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {"buffers": buffers}) for name in OPTIMIZERS for buffers in (1, 2)), ("lion", {}), ("signum", {})],
)
def test_a_run_goes_on_bit_for_bit_and_to_a_longer_horizon(name, settings):
    def build(model):
        return build_optimizer(name, model, lr=0.01, age=PATHS[2], **settings)

    model = net(torch.float32)
    optimizer = build(model)
    train(model, optimizer, range(10))
    other = copy.deepcopy(model)
    again = build(other)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    longer = get_schedule("cos", 2 * STEPS, 4)  # its rates jump up where the run would have ended
    for part, schedule in ((range(10, STEPS), SCHEDULE), (range(STEPS, 30), longer)):
        train(model, optimizer, part, schedule)
        train(other, again, part, schedule)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert [each.get("age_now") for each in optimizer.param_groups] == [g.get("age_now") for g in again.param_groups]
    assert [state["age"] for _, state in aged(optimizer)] == [state["age"] for _, state in aged(again)]


def test_a_run_that_had_no_age_gets_one_where_its_path_is_then():
    model = net()
    optimizer = build_optimizer("muon", model, lr=0.01)
    train(model, optimizer, range(6))
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:  # as a version without ages saved it
        for key in ("age", "fresh", "buffers", "buffer_ages"):
            del group[key]
    again = build_optimizer("muon", model, lr=0.01, age="constant(2)")
    again.load_state_dict(saved)
    train(model, again, range(6, 8), lambda _: 1.0)
    assert {float(state["age"]) for _, state in aged(again)} == {2.0}


def test_without_an_age_there_is_no_state_more():
    for name in OPTIMIZERS:
        optimizer = build_optimizer(name, net(), lr=0.01)
        assert not any({"age", "average_0"} & set(state) for state in optimizer.state.values())


def test_skipped_and_missing_gradients_do_not_age_a_momentum():
    model = net()
    optimizer: Any = build_optimizer("adana", model, lr=0.01, age="constant(50)", capturable=True, fused=False)
    first, *others = model.parameters()
    for step in range(5):
        for p in others:
            p.grad = torch.ones_like(p)
        first.grad = torch.ones_like(first) if step < 2 else None
        optimizer.step(found_nonfinite=torch.tensor(step == 3))
    assert float(optimizer.state[first]["age"]) == 1.0
    assert float(optimizer.state[others[0]]["age"]) == 2.0


@pytest.mark.parametrize(
    ("age", "says"),
    [
        ("constant", "a name with numbers"),
        ("20", "a name with numbers"),
        ("constant()", r"constant\(mean\)"),
        ("constant(1, 2)", r"constant\(mean\)"),
        ("constant(-1)", "mean must be finite and not negative"),
        ("log_time(0)", "delta must be finite and positive"),
        ("follow(8, 60, 1)", r"follow\(delta, peak, power, floor\)"),
        ("follow(8, nan, 1, 8)", "peak must be finite"),
        ("konstant(3)", "unknown age 'konstant'"),
    ],
)
def test_a_path_that_makes_no_sense_is_refused(age, says):
    for name in ("adana", "muon"):
        with pytest.raises(UserError, match=says):
            build_optimizer(name, net(), lr=0.01, age=age)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"buffers": 2}, "set age"),
        ({"age": "constant(9)", "buffers": 0}, "at least 1"),
        ({"age": "constant(9)", "buffers": 1.5}, "an integer"),
        ({"age": "constant(9)", "buffers": 2, "buffer_ages": (9.0, 2.0)}, "the shorter first"),
        ({"age": "constant(9)", "fresh": 1.5}, "between 0 and 1"),
        ({"age": "constant(9)", "momentum_cooldown": 1.0}, "give one of them"),
        ({"age": "constant(9)", "buffers": 2, "state_dtype": "8bit"}, "state_dtype float32"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, says):
    with pytest.raises(UserError, match=says):
        build_optimizer("adana", net(torch.float32), lr=0.01, **settings)


def test_paths_of_ones_own_are_named_like_the_others():
    AGES.add("test-ramp", lambda t, s, most: min(t / 9, most * s))
    model = net()
    optimizer = build_optimizer("muon", model, lr=0.01, age="test_ramp(4)")
    train(model, optimizer, range(3), lambda _: 0.01)
    assert float(aged(optimizer)[0][1]["age"]) == pytest.approx(0.04)
    AGES.add("test-broken", lambda t, s: math.nan)
    with pytest.raises(UserError, match="is nan at step 1"):
        train(net(), build_optimizer("muon", model, lr=0.01, age="test-broken()"), range(1))
