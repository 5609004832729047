"""Schedules: the measured values, every warmup, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from danalab.errors import UserError
from danalab.optim import ADana, get_schedule, lr_scheduler
from danalab.optim.schedules import DECAYS, SCHEDULES, schedule_settings

FOLDER = Path(__file__).parents[1] / "fixtures" / "golden"
INDEX = json.loads((FOLDER / "golden_index.json").read_text())["lr_schedules"]
OURS = {"final_lr_factor": "final_lr_scale", "init_div_factor": "div_factor", "n_inf": "cos_inf_steps"}


@pytest.mark.parametrize("name", INDEX["arrays"])
def test_values_equal_the_reference(name):
    case = INDEX["arrays"][name]
    settings = {OURS.get(k, k): v for k, v in case.items() if k not in ("kind", "shape", "dtype")}
    schedule = get_schedule(case["kind"], INDEX["T"], INDEX["warmup"], **settings)
    want = np.load(FOLDER / "lr_schedules.npz")[name][: INDEX["T"]]
    np.testing.assert_allclose([schedule(i) for i in range(INDEX["T"])], want, rtol=1e-9, atol=1e-12)


@given(
    name=st.sampled_from(list(SCHEDULES)),
    steps=st.integers(1, 400),
    share=st.floats(0.0, 0.89),
    decay=st.sampled_from(list(DECAYS)),
)
def test_factors_stay_between_0_and_1_and_keep_their_last_value(name, steps, share, decay):
    settings = {"wsd": {"decay_type": decay, "final_lr_scale": 0.05}}.get(name, {})
    schedule = get_schedule(name, steps, int(share * steps), **settings)
    factors = [schedule(i) for i in range(steps + 3)]
    assert all(0 <= factor <= 1 + 1e-12 for factor in factors)
    assert factors[steps + 1] == factors[steps + 2] == schedule(10 * steps)


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("steps", [2, 3, 100])
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_the_peak_is_reached_with_no_warm_up_and_with_one_step(name, steps, warmup):
    schedule = get_schedule(name, steps, warmup)
    assert schedule(warmup if name in ("cos_inf", "cos_restarts", "wsd", "powerlaw") else 0) == 1.0


def test_one_step_runs_work():
    assert all(get_schedule(name, 1)(0) == 1.0 for name in list(SCHEDULES))


def test_default_cosine_ends_at_a_tenth_of_the_peak():
    assert get_schedule("cos_inf", 1000, 20)(1000) == pytest.approx(0.1)


@pytest.mark.parametrize(("t_mult", "lengths"), [(1, [30, 30, 30]), (2, [10, 20, 40])])
def test_restarts_equal_those_of_torch(t_mult, lengths):
    p = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([p], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, lengths[0], t_mult, eta_min=0.1)
    schedule = get_schedule("cos_restarts", sum(lengths), cycles=len(lengths), cycle_factor=t_mult)
    for i in range(sum(lengths)):
        assert schedule(i) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        theirs.step()
    assert schedule(sum(lengths)) == pytest.approx(0.1)


def test_linear_never_falls_below_zero_past_the_end():
    assert get_schedule("linear", 50, 5, final_div_factor=1e4)(500) == pytest.approx(1e-6)


@pytest.mark.parametrize("spelling", ["miror_cosine", "mirror_cosine", "mirror-cosine"])
def test_both_spellings_of_the_mirrored_cosine(spelling):
    schedule = get_schedule("wsd", 100, 0, decay_type=spelling, fract_decay=0.5)
    assert schedule(75) == pytest.approx(0.5)
    line, cosine = (
        get_schedule("wsd", 100, 0, decay_type=kind, fract_decay=0.5) for kind in ("linear", "cosine")
    )
    assert schedule(62) == pytest.approx(2 * line(62) - cosine(62))


def test_growing_powerlaw_is_capped_at_the_peak_by_default():
    schedule = get_schedule("powerlaw", 100, 0, init_value=0.1, power=0.5)
    assert schedule(3) == pytest.approx(0.2)
    assert schedule(99) == 1.0


@pytest.mark.parametrize(
    ("name", "steps", "warmup", "settings", "word"),
    [
        ("cosin", 10, 1, {}, "cos"),
        ("cos", 10, 10, {}, "warmup"),
        ("cos", 10, -1, {}, "warmup"),
        ("cos", 0, 0, {}, "steps"),
        ("cos", 10, 1, {"fract_decay": 0.1}, "fract_decay"),
        ("cos", 10, 1, {"div_facto": 10.0}, "div_factor"),
        ("cos", 10, 1, {"div_factor": 0.0}, "div_factor"),
        ("cos", 10, 1, {"div_factor": math.inf}, "div_factor"),
        ("cos_inf", 10, 5, {"cos_inf_steps": 5}, "cosine"),
        ("cos_restarts", 10, 5, {"cycles": 6}, "cycles"),
        ("cos_restarts", 10, 5, {"cycles": 0}, "cycles"),
        ("cos_restarts", 100, 0, {"cycles": 4, "cycle_factor": 10.0}, "less than a step"),
        ("cos_restarts", 100, 0, {"cycles": 4, "cycle_factor": 1e200}, "less than a step"),
        ("wsd", 10, 1, {"decay_type": "exp"}, "final_lr_scale"),
        ("wsd", 10, 1, {"decay_type": "cubic"}, "cubic"),
        ("wsd", 10, 1, {"fract_decay": 1.5}, "fract_decay"),
        ("wsd", 10, 1, {"final_lr_scale": -0.1}, "final_lr_scale"),
        ("wsd", 10, 5, {"fract_decay": 0.8}, "overlap"),
        ("powerlaw", 10, 1, {"power": 1.0, "saturation_value": 0.0}, "saturation_value"),
        ("powerlaw", 10, 1, {"time_scale": 0.0}, "time_scale"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(name, steps, warmup, settings, word):
    with pytest.raises(UserError, match=word) as caught:
        get_schedule(name, steps, warmup, **settings)
    assert "\n" not in str(caught.value)


def test_settings_are_listed_with_their_defaults():
    assert schedule_settings("cos_inf") == {"div_factor": 100.0, "final_div_factor": 0.1, "cos_inf_steps": 0}


def test_scheduler_gives_step_i_the_factor_of_i_and_its_state_is_the_step():
    p = torch.ones(1, requires_grad=True)
    optimizer = ADana([p], lr=0.5)
    schedule = get_schedule("cos_inf", 20, 4)
    scheduler = lr_scheduler(optimizer, schedule)
    for i in range(20):
        assert optimizer.param_groups[0]["lr"] == 0.5 * schedule(i)
        p.grad = torch.ones_like(p)
        optimizer.step()
        scheduler.step()
    other = lr_scheduler(ADana([p], lr=0.5), schedule)
    other.load_state_dict(scheduler.state_dict())
    assert other.last_epoch == 20
