"""Planted laws of the best rate over sizes, horizons and batches, on the grid of the horizon experiment."""

import math

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.ladder.fit.tuning import TunedSize
from danalab.optim.rate_search import next_rate
from danalab_annexes.ladder.exponents import fit_exponents

RUNGS = [
    (1728, 1),
    (3072, 1),
    (6912, 1),
    (1728, 4),
    (3072, 4),
    (6912, 4),
    (1728, 16),
    (3072, 16),
    (6912, 16),
    (1728, 64),
]
"""(parameters without embeddings, f) of bench/horizon_cpu.yaml, in its order."""
NOISE = {"dana-star-mk4": (0.011, 0.0063), "adana": (0.009, 0.0084), "adamw": (0.007, 0.0138)}
"""Curvature of log loss in log rate and noise of log loss between seeds, as measured there."""


def planted(h, rng, curvature, noise, d=-0.6, rungs=RUNGS):
    """The tuned rungs of a ladder: three rates around the best of the rung before, a fourth, two more seeds."""
    tuned, best = [], {}
    for params, f in rungs:
        true = math.log(0.05) + d * math.log(params / 1728) + h * math.log(f)
        centre = best.get(params, best.get("last", 0.05 * math.exp(rng.uniform(-0.5, 0.5))))

        def loss(multiplier, centre=centre, true=true):
            log_lr = math.log(multiplier * centre)
            return 2.5 * math.exp(curvature * (log_lr - true) ** 2 + noise * rng.standard_normal())

        tried = {m: loss(m) for m in (0.5, 1.0, 2.0)}
        further = next_rate(tried, refine=True)
        if further is not None:
            tried[further] = loss(further)
        chosen = min(tried, key=tried.__getitem__)
        best[params] = best["last"] = chosen * centre
        order = sorted(tried)
        seeds = [tried[chosen], loss(chosen), loss(chosen)]
        losses = np.array([tried[m] for m in order])
        tuned.append(TunedSize(centre * np.array(order), losses, order.index(chosen), np.array(seeds)))
    return {"P": [float(params) for params, _ in rungs], "f": [float(f) for _, f in rungs]}, tuned


def covered(h, opt, ladders, seed):
    rng = np.random.default_rng(seed)
    laws = [fit_exponents(*planted(h, rng, *NOISE[opt]), n_bootstrap=50) for _ in range(ladders)]
    assert all(law.intervals for law in laws if 2 * law.n_at_edge <= law.n_rungs)
    return sum(not law.intervals or h in law.intervals["f"] for law in laws) / ladders


@pytest.mark.parametrize("h", [-0.3, -0.15, 0.0])
def test_planted_exponents_are_covered(h):
    assert covered(h, "adana", 20, seed=7) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("opt", sorted(NOISE))
@pytest.mark.parametrize("h", [-0.3, -0.15, 0.0])
def test_planted_exponents_are_covered_in_93_of_100_ladders_at_the_measured_noise(h, opt):
    assert covered(h, opt, 200, seed=1) >= 0.93


def test_without_noise_the_exponents_are_exact_and_the_grid_still_limits_them():
    axes, tuned = planted(-0.3, np.random.default_rng(0), 0.02, 0.0)
    law = fit_exponents(axes, tuned)
    assert law.exponents == pytest.approx({"P": -0.6, "f": -0.3}, abs=0.02)
    assert law.a == pytest.approx(0.05 * 1728**0.6, rel=0.1)
    assert law.ranges == {"P": (1728, 6912), "f": (1, 64)}
    width = law.intervals["f"].high - law.intervals["f"].low
    assert width > 2 * math.log(2) / 2 / math.log(64), "half a step of the grid at both ends"


def test_axes_that_do_not_vary_or_follow_from_others_are_left_out():
    axes, tuned = planted(-0.3, np.random.default_rng(0), 0.02, 0.0)
    axes["T"] = [512 * (1 + 0.01 * i) for i in range(len(RUNGS))]
    assert set(fit_exponents(axes, tuned).exponents) == {"P", "f"}
    axes["T"] = [params**2 for params in axes["P"]]
    assert set(fit_exponents(axes, tuned).exponents) == {"P", "f"}
    axes["T"] = [4.0 ** (i % 2) for i in range(len(RUNGS))]
    assert fit_exponents(axes, tuned).exponents["T"] == pytest.approx(0, abs=0.02)


def test_best_values_at_the_edge_of_most_grids_give_no_interval():
    axes, tuned = planted(-0.3, np.random.default_rng(0), 0.02, 0.0)
    two = [TunedSize(each.rates[:2], each.losses[:2], int(each.losses[:2].argmin()), each.seeds) for each in tuned]
    law = fit_exponents(axes, two)
    assert (law.intervals, law.n_at_edge) == ({}, len(RUNGS))


def test_a_law_needs_more_rungs_than_coefficients_for_an_interval_and_an_axis_that_varies():
    axes, tuned = planted(0.0, np.random.default_rng(0), 0.02, 0.0, rungs=[(1728, 1), (1728, 4)])
    assert fit_exponents(axes, tuned).intervals == {}
    with pytest.raises(UserError, match="more sizes, horizons or batches"):
        fit_exponents({"P": [1728]}, tuned[:1])
