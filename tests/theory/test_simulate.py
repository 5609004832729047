from __future__ import annotations

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.theory import PLRF, binned_spectrum, draw, moment_recursion, sgd, simulate, standard


@pytest.fixture(scope="module")
def small():
    return draw(PLRF(1.0, 0.5, 60, 20), seed=3)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["sgd", "dana-decaying"])
def test_the_mean_of_many_runs_is_the_exact_recursion(small, name):
    algorithm = standard(name, alpha=1.0, beta=0.5, d=20, trace=small.model.trace, batch=4)
    times = [1, 10, 100, 300]
    runs = simulate(small.spectrum, algorithm, 300, batch=4, runs=1000, times=times).risk
    exact = moment_recursion(small.spectrum, algorithm, 300, batch=4, times=times).risk
    error = runs.std(0) / np.sqrt(len(runs))
    assert (np.abs(runs.mean(0) - exact) < 4.5 * error).all()


def test_runs_in_the_eigenbasis_have_the_law_of_runs_with_the_full_model(small):
    """SGD on z ~ N(0, I_v) and the matrix itself, as the model is defined, in numpy."""
    model, rng = small.model, np.random.default_rng(0)
    j = np.arange(1, model.v + 1.0)
    A = j[:, None] ** -model.alpha * (
        np.random.default_rng(3).standard_normal((model.v, model.d)) / np.sqrt(model.d)
    )
    c = j ** -(model.alpha + model.beta)
    gamma2, steps = 0.5 * min(1, 4 / model.trace), 60
    theta = np.zeros((1500, model.d))
    for _ in range(steps):
        z = rng.standard_normal((1500, 4, model.v))
        X = z @ A
        error = np.einsum("rbd,rd->rb", X, theta) - z @ c
        theta -= gamma2 * np.einsum("rb,rbd->rd", error, X) / 4
    risk = 0.5 * np.sum((theta @ A.T - c) ** 2, axis=1)
    exact = moment_recursion(small.spectrum, sgd(gamma2), steps, batch=4).risk[-1]
    assert risk.mean() == pytest.approx(exact, abs=4.5 * risk.std() / np.sqrt(1500))


def test_the_stream_does_not_depend_on_when_it_is_looked_at(small):
    rare, often = (simulate(small.spectrum, sgd(0.2), 50, times=t).risk[0, -1] for t in ([50], range(51)))
    assert rare == often


@pytest.mark.slow
def test_decaying_is_below_constant_is_below_sgd_and_momentum_only_rescales_sgd():
    """Expected and sampled risk over the last third of 12,000 steps at d = 500."""
    model = PLRF(1.0, 0.3, 2000, 500)
    spectrum = draw(model, 0).spectrum
    times = np.arange(8000, 12_001, 100)
    mean, sampled = {}, {}
    for name in ("sgd", "sgd-m", "dana-constant", "dana-decaying"):
        algorithm = standard(name, alpha=1.0, beta=0.3, d=500, trace=model.trace)
        mean[name] = moment_recursion(spectrum, algorithm, 12_000, times=times).risk.mean()
        sampled[name] = simulate(spectrum, algorithm, 12_000, times=times).risk.mean()
        assert sampled[name] == pytest.approx(mean[name], rel=0.1)
    assert mean["sgd"] == pytest.approx(7.772e-4, rel=2e-3)
    assert mean["sgd-m"] == pytest.approx(6.933e-4, rel=2e-3)
    assert mean["dana-constant"] == pytest.approx(5.680e-4, rel=2e-3)
    assert mean["dana-decaying"] == pytest.approx(3.358e-4, rel=2e-3)
    assert sampled["dana-decaying"] < sampled["dana-constant"] < sampled["sgd-m"] <= sampled["sgd"]


def test_bins_cannot_be_sampled():
    with pytest.raises(UserError, match="binned"):
        simulate(binned_spectrum(1.0, 0.3, 1000), sgd(0.1), 10)
