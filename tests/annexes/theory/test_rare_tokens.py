"""Rare tokens: the closed forms against exact numbers, a Monte-Carlo oracle and the optimizers themselves."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy.integrate import quad

pytest.importorskip("jax")

from danalab.data.sources.synthetic import Language
from danalab.errors import UserError
from danalab.optim import build_optimizer
from danalab_annexes.theory import rare_tokens as study
from danalab_annexes.theory.rare_tokens import (
    HeldOut,
    equilibrium,
    geometric_frequencies,
    language_bias,
    mean_and_interval,
    periodic_ratio,
    random_ratio,
    table_bias,
)
from danalab_annexes.theory.studies import RareTokensFlags


@pytest.mark.parametrize("gap", [10, 40, 200])
def test_the_periodic_ratio_balances_the_pushes_of_one_period(gap):
    """One push up by 1 / sqrt(v), then one down by p / sqrt(v) in every step while v decays by beta."""
    beta = 0.99
    tau = -1 / math.log(beta)
    p = 1 / sum(beta ** (-k / 2) for k in range(gap))
    assert gap * p == pytest.approx(float(periodic_ratio(gap / tau)), rel=0.01)


@pytest.mark.slow
def test_random_arrivals_cost_one_minus_half_of_kappa():
    """E[(1 + S)^-1/2] / E[S^-1/2] by another way: S is a Poisson shot noise, simulated as an autoregression."""
    rng = np.random.default_rng(0)
    kappa, dt = 0.5, 0.01
    arrivals = rng.random((4000, 4000)) < dt / kappa
    S = np.full(4000, 1 / kappa)
    up = down = 0.0
    for t, x in enumerate(arrivals):
        S *= math.exp(-dt)
        if t > 1000:
            down += (S**-0.5).mean()
            up += ((1 + S) ** -0.5).mean()
        S += x
    assert up / down == pytest.approx(float(random_ratio(kappa)), abs=0.01)
    assert random_ratio([2.0, 5.0]).tolist() == [0, 0]


def test_a_rare_token_among_frequent_ones_tends_to_the_formula():
    """One rare token takes nothing worth mentioning from the others, and tau is long."""
    for kappa in (0.2, 1.0):
        f = 1e-5
        p = equilibrium([0.6, 0.4 - f, f], 1 / (kappa * f))
        assert p.sum() == pytest.approx(1, abs=1e-9)
        assert p[2] / f == pytest.approx(float(random_ratio(kappa)), abs=0.01)
        np.testing.assert_allclose(p[:2] / [0.6, 0.4 - f], 1, atol=1e-3)


def test_a_momentum_of_the_same_memory_halves_the_bias():
    f = 1e-5
    plain, averaged = (equilibrium([1 - f, f], 10 / f, [r])[1] / f for r in (math.inf, 1.0))
    assert 1 - plain == pytest.approx(0.05, abs=0.002)
    assert 1 - averaged == pytest.approx(0.025, abs=0.002)


def test_a_long_memory_has_no_bias():
    f = geometric_frequencies(0.01, 8)
    np.testing.assert_allclose(equilibrium(f, 1e6), f, rtol=1e-3)


def test_the_kernel_of_the_momentum_is_its_integral():
    from danalab_annexes.theory.rare_tokens import _kernel

    for r in (0.5, 2.0, 9.5):
        for u in (0.01, 1.0, 30.0):
            want = quad(lambda y, r=r, u=u: r * y ** (r - 1) * math.exp(-u * y), 0, 1)[0]
            assert float(_kernel(r, np.asarray([u]))[0]) == pytest.approx(want, rel=1e-6)


def test_frequencies_fall_by_one_factor_and_add_up_to_1():
    f = geometric_frequencies(0.002, 16)
    assert f.sum() == pytest.approx(1)
    assert f[-1] == pytest.approx(0.002, rel=1e-6)
    np.testing.assert_allclose(f[1:] / f[:-1], f[1] / f[0])
    with pytest.raises(UserError, match="rarest"):
        geometric_frequencies(0.2, 16)


@pytest.mark.slow
def test_a_table_under_sgd_stays_at_its_frequencies_and_under_adamw_rare_tokens_sink():
    f = geometric_frequencies(0.02, 6)
    found = {}
    for name, lr, settings in (("sgd", 0.1, {}), ("adamw", 0.02, {"betas": (0.9, 0.8), "weight_decay": 0.0})):
        found[name] = mean_and_interval(
            table_bias(partial(build_optimizer, name, lr=lr, **settings), f, steps=1500, rows=32)
        )
    mean, width = found["sgd"]
    assert (np.abs(mean - 1) < 3 * width).all()
    mean, width = found["adamw"]
    assert mean[-1] + 3 * width[-1] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("betas", [(0.0, 0.95), (0.9, 0.95), (0.9, 0.99)])
def test_adamw_rests_where_the_closed_form_says(betas):
    f = geometric_frequencies(0.01, 12)
    tau = -1 / math.log(betas[1])
    memories = [math.inf] if betas[0] == 0 else [-tau * math.log(betas[0])]
    trained = partial(build_optimizer, "adamw", lr=0.003, betas=betas, weight_decay=0.0)
    mean, width = mean_and_interval(table_bias(trained, f, steps=40_000, rows=64))
    want = equilibrium(f, tau, memories) / f
    assert (np.abs(mean - want) < 2.5 * width + 0.03).all()  # 0.03: steps are discrete, and p moves between arrivals


@pytest.mark.slow
def test_the_bias_of_logarithmic_time_vanishes_with_the_length_of_the_run():
    f = geometric_frequencies(0.01, 12)
    build = partial(build_optimizer, "adana", lr=0.002)
    short, long = (mean_and_interval(table_bias(build, f, steps=n, rows=64)) for n in (1000, 20_000))
    assert short[0][-1] + 3 * short[1][-1] < 0.8
    assert abs(long[0][-1] - 1) < 0.1


def test_the_held_out_truth_is_binned_by_rank():
    held_out = HeldOut.of(Language(words=32, answers=4, document_tokens=16), 3)
    assert held_out.bins == [(0, 4), (4, 20), (20, 32)]
    assert held_out.truth.shape == (3, 15, 32 + 4 + 8 + 4)
    np.testing.assert_allclose(held_out.truth.sum(-1), 1)
    assert (np.diff(held_out.frequencies) < 0).all()


def test_a_model_of_the_language_learns_and_its_probabilities_are_compared_with_the_truth():
    corpus = Language(words=32, answers=4, document_tokens=64)
    held_out = HeldOut.of(corpus, 4)
    build = partial(build_optimizer, "adamw", lr=0.02, weight_decay=0.0)
    untrained, trained = (language_bias(corpus, held_out, build, steps=n, documents=2) for n in (1, 150))
    assert trained[0] < untrained[0] - 0.3
    assert trained[1].shape == (3,)
    assert np.abs(np.log(trained[1])).max() < 0.5 < np.abs(np.log(untrained[1])).max()


@pytest.mark.slow
def test_the_study_reports_every_contender_with_intervals(tmp_path):
    found = study.compute(RareTokensFlags(words=32, steps=200, rows=4, language_steps=10, seeds=2))
    for rows in found.findings.values():
        assert [next(iter(row.values())) for row in rows] == list(study.CONTENDERS)
        assert all("±" in list(row.values())[1] for row in rows)
    assert len(study.draw_figure(found).axes) == 3
    with pytest.raises(UserError, match="--seeds 1"):
        study.compute(RareTokensFlags(seeds=1))


@pytest.mark.slow
def test_the_middle_rate_of_sgd_does_not_diverge_on_the_language():
    corpus = Language(words=512, document_tokens=64)
    sgd = study.CONTENDERS["SGD"]
    assert math.isfinite(language_bias(corpus, HeldOut.of(corpus), sgd.at(sgd.language_lr), steps=500, documents=1)[0])
