"""Independent weight decay: its two forms, its bound, and what follows the learning rate."""

from __future__ import annotations

import pytest
import torch

from danalab.errors import UserError
from danalab.optim import ADana, build_optimizer


def param(*shape: int, dtype: torch.dtype = torch.float32, value: float = 1.0) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype, requires_grad=True)


def with_gradient(p: torch.Tensor, seed: int = 0) -> torch.Tensor:
    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)).to(p.dtype)
    return p


def test_decay_follows_the_schedule_and_not_the_peak_learning_rate():
    for peak in (1e-6, 1e-9):
        p = param(1, dtype=torch.float64)
        p.grad = torch.zeros_like(p)
        optimizer = ADana([p], lr=peak, weight_decay=0.2, wd_ts=4.0)
        optimizer.param_groups[0]["lr"] = peak / 2
        optimizer.step()
        assert p.item() == pytest.approx(1 - 0.5 * 0.2 / (1 + 1 / 4), abs=1e-12)


def test_omega_and_horizon_give_omega_over_time():
    group = ADana([param(1)], omega=4.0, horizon=1000).param_groups[0]
    assert (group["weight_decay"], group["wd_ts"]) == (0.04, 100.0)
    group = ADana([param(1)], omega=4.0, wd_ts=50.0).param_groups[0]
    assert (group["weight_decay"], group["wd_ts"]) == (0.08, 50.0)
    group = ADana([{"params": [param(1)], "omega": 2.0, "horizon": 100}], weight_decay=0.01).param_groups[0]
    assert (group["weight_decay"], group["wd_ts"]) == (0.2, 10.0)


@pytest.mark.parametrize("name", ["adana", "dana-star-mk4", "adamw-decaying-wd", "ademamix-decaying-wd"])
def test_without_a_horizon_the_decay_follows_the_step_alone(name, caplog):
    p = with_gradient(param(1, dtype=torch.float64))
    optimizer = build_optimizer(name, [p], lr=1e-3, omega=4.0, decay_bound=0)
    for t in range(1, 4):
        optimizer.step()
        assert optimizer.coefficients()["lambda"] == pytest.approx(4.0 / (100 + t), rel=1e-12)
    optimizer.add_param_group({"params": [param(2)], "omega": 2.0})
    assert optimizer.param_groups[-1]["wd_ts"] == 100.0
    assert caplog.text == "", "no step is beyond a horizon"
    with pytest.raises(UserError, match="horizon and wd_ts both set the time scale"):
        build_optimizer(name, [p], lr=1e-3, omega=4.0, horizon=100, wd_ts=10.0)


def test_a_group_with_weight_decay_beside_omega_is_refused_and_0_is_not():
    groups = [{"params": [param(2, 2)], "weight_decay": 0.1}, {"params": [param(2)], "weight_decay": 0.0}]
    with pytest.raises(UserError, match=r"weight_decay 0.1, and the optimizer omega 4; .*leave weight_decay out"):
        ADana(groups, lr=2e-3, omega=4.0, horizon=600)
    del groups[0]["weight_decay"]
    bounded, still = ADana(groups, lr=2e-3, omega=4.0, horizon=600).param_groups
    assert bounded["weight_decay"] == 4.0 / 60
    assert still["weight_decay"] == 0


def test_steps_beyond_the_horizon_are_said_once(caplog):
    optimizer = ADana([with_gradient(param(2))], omega=4.0, horizon=3)
    for _ in range(6):
        optimizer.step()
    assert [r.getMessage() for r in caplog.records if "beyond" in r.getMessage()] == [
        "ADana: step 4 is beyond the horizon of 3 steps; weight decay goes on falling as omega / (wd_ts + t):"
        " build the optimizer with the length of the whole run"
    ]


@pytest.mark.parametrize("horizon", [1, 10, 20, 30, 100, 1000])
def test_omega_takes_at_most_twice_the_learning_rate_of_a_weight_however_short_the_run(horizon):
    p = param(1)
    p.grad = torch.zeros_like(p)
    optimizer = ADana([p], lr=1e-3, omega=4.0, horizon=horizon)
    optimizer.step()
    assert optimizer.coefficients()["lambda"] == min(4.0 / (horizon / 10 + 1), 2e-3)
    assert p.item() == pytest.approx(1 - 2e-3)


def test_the_bound_of_the_decay_can_be_chosen_and_left_out():
    def first_decay(lr: float = 1e-3, **settings) -> float:
        (p,) = [param(1)]
        optimizer = ADana([p], lr=lr, **settings)
        optimizer.state[p]["step"].fill_(1)
        return optimizer.coefficients()["lambda"]

    short = {"omega": 4.0, "horizon": 60}
    assert first_decay(**short, decay_bound=0.5) == 5e-4
    assert first_decay(**short, decay_bound=0) == pytest.approx(4 / 7)
    assert first_decay(weight_decay=0.2) == 0.2
    assert first_decay(weight_decay=0.2, decay_bound=3.0) == 3e-3
    assert first_decay(lr=0.5, **short) == 0.5  # never more than half a weight
    with pytest.raises(UserError, match="decay_bound is -1"):
        first_decay(**short, decay_bound=-1)


def test_omega_is_not_bounded_once_it_has_fallen_below_the_bound():
    (p,) = [param(1)]
    optimizer = ADana([p], lr=1e-3, omega=4.0, horizon=10_000)
    optimizer.state[p]["step"].fill_(5000)
    assert optimizer.coefficients()["lambda"] == pytest.approx(4.0 / (1000 + 5000))


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"weight_decay": 0.1}, "half in 7 steps"),
        ({"weight_decay": 0.6, "wd_ts": 10.0}, "0.545 of each weight in the first step"),
        ({"weight_decay": 1e-3}, ""),
        ({"weight_decay": 0.04, "wd_ts": 100.0}, ""),
        ({"omega": 4.0, "horizon": 10}, ""),
    ],
)
def test_a_decay_that_empties_the_weights_is_warned_of_once_with_numbers(settings, warns, caplog):
    ADana([param(2)], lr=1e-3, **settings)
    assert len(caplog.records) == bool(warns)
    assert warns in caplog.text
    assert not warns or "omega=4.0" in caplog.text


@pytest.mark.parametrize("scheduler", ["OneCycleLR", "CyclicLR"])
def test_a_schedule_above_the_rate_at_construction_does_not_multiply_the_decay(scheduler, caplog):
    p = param(1)
    p.grad = torch.zeros_like(p)
    optimizer = ADana([p], lr=1e-3, weight_decay=1e-3)
    settings = {"OneCycleLR": {"max_lr": 1e-2, "total_steps": 20}, "CyclicLR": {"base_lr": 1e-3, "max_lr": 1e-2}}
    schedule = getattr(torch.optim.lr_scheduler, scheduler)(optimizer, **settings[scheduler], cycle_momentum=False)
    largest = 0.0
    for _ in range(10):
        before = p.item()
        optimizer.step()
        schedule.step()
        largest = max(largest, 1 - p.item() / before)
    assert largest <= 1.0001e-3
    assert caplog.text.count("above the 0.001 at construction") == 1


def test_a_rate_above_the_one_at_construction_is_reported_where_a_cooldown_follows_it(caplog):
    p = param(1)
    p.grad = torch.ones_like(p)
    optimizer = ADana([p], lr=1e-3, momentum_cooldown=1.0)
    optimizer.param_groups[0]["lr"] = 1e-2
    optimizer.step()
    assert "the momentum's cooldown follows lr / peak_lr" in caplog.text
    assert optimizer.coefficients()["beta"] == pytest.approx(1 / 9)  # as at the rate at construction


def test_a_negative_cooldown_is_refused():
    with pytest.raises(UserError, match=r"momentum_cooldown is -1\.0"):
        ADana([param(1)], momentum_cooldown=-1.0)
