"""The momentum's cooldown: the theory's schedules are the optimizer's, and what the exact recursion says about them."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from danalab.errors import UserError  # noqa: E402
from danalab.optim.rules.scalars import log_time_scalars  # noqa: E402
from danalab.theory import moment_recursion, power_law_spectrum, simulate  # noqa: E402
from danalab.theory.curve import enable_x64  # noqa: E402
from danalab_annexes.theory import cooldown as study  # noqa: E402
from danalab_annexes.theory.cooldown import COOLDOWNS, Cooldown, CooledADana, LearningRateDecay  # noqa: E402
from danalab_annexes.theory.studies import CooldownFlags  # noqa: E402


@pytest.mark.parametrize("settings", study.DECAYS.values(), ids=study.DECAYS)
def test_the_clock_is_the_sum_of_the_factors(settings):
    t = np.arange(1000)
    with enable_x64():
        decay = LearningRateDecay(1000.0, **settings)
        factor, clock = np.asarray(decay.factor(t)), np.asarray(decay.clock(t))
    np.testing.assert_allclose(
        clock, np.cumsum(factor), atol=1.01
    )  # an integral and a sum: half a step apart at each end
    assert factor.max() == 1
    assert 0 < factor[-1] < 0.01
    assert factor[0] == (1 / 50 if "warmup" in settings else 1)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_memory_cooldown_is_the_optimizers_momentum_cooldown(exponent):
    group = {
        "delta": 8.0,
        "kappa": 0.8,
        "eps": 0,
        "gamma3": 1.0,
        "alpha_offset": 1.0,
        "peak_lr": 0.1,
        "weight_decay": 0,
    }
    for t in (0, 1, 10, 50, 99):
        with enable_x64():
            decay = LearningRateDecay(100.0, cosine=1.0)
            rates = CooledADana(0.1, 0.8, 8.0, decay, Cooldown(memory=exponent)).at(t)
            lr = 0.1 * float(decay.factor(t))
        s = log_time_scalars({**group, "lr": lr, "momentum_cooldown": exponent}, t + 1)
        want = (s["gain"], s["lr"], s["lr"] * (s["alpha"] + 1), s["gain"])
        np.testing.assert_allclose([float(r) for r in rates], want, rtol=1e-12)


@pytest.mark.slow
def test_a_sweep_is_its_members_one_by_one():
    spectrum = power_law_spectrum(1.0, 0.5, 30, 0.1)
    sweep = [
        CooledADana(lr, 0.8, 8.0, LearningRateDecay(60.0), c)
        for lr in (0.02, 0.1)
        for c in list(COOLDOWNS.values())[:4]
    ]
    together = moment_recursion(spectrum, sweep, 60, times=[0, 10, 60]).risk
    for row, algorithm in list(zip(together, sweep, strict=True))[::7]:
        np.testing.assert_allclose(row, moment_recursion(spectrum, algorithm, 60, times=[0, 10, 60]).risk, rtol=1e-12)


@pytest.mark.slow
def test_the_recursion_is_the_mean_of_stochastic_runs():
    spectrum = power_law_spectrum(0.8, 0.4, 20, 0.1)
    algorithm = CooledADana(0.05, 0.8, 8.0, LearningRateDecay(200.0), COOLDOWNS["memory t s"])
    exact = moment_recursion(spectrum, algorithm, 200, times=[200]).risk[-1]
    runs = simulate(spectrum, algorithm, 200, runs=2000, times=[200]).risk[:, -1]
    assert abs(runs.mean() - exact) < 4 * runs.std() / len(runs) ** 0.5


@pytest.fixture(scope="module")
def found():
    return study.compute(CooldownFlags(horizons=(100,), deltas=(8.0,), noises=(0.001, 1.0)))


@pytest.mark.slow
def test_a_shorter_memory_lowers_the_final_risk_on_every_problem_and_less_momentum_does_not(found):
    rows = {row["cooldown"]: row for row in found.findings["excess risk at the end, relative to no cooldown"]}
    assert rows["memory t s"]["worst"] < 1
    assert rows["memory t s"]["mean"] < 0.96
    assert rows["alpha s"]["worst"] > 1.02
    assert rows["clock, gradients by s"]["mean"] > 1.05


@pytest.mark.slow
def test_the_figure_shows_every_candidate(found):
    figure = study.draw_figure(found)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(COOLDOWNS)[::-1]


def test_an_empty_list_is_refused():
    with pytest.raises(UserError, match="horizons"):
        study.compute(CooldownFlags(horizons=()))
