"""The memory of momentum: moments against simulated runs, gains against ages, and the best path against the rest."""

import jax.numpy as jnp
import numpy as np
import pytest

from danalab.errors import UserError
from danalab.theory.problem import binned_spectrum
from danalab_annexes.theory import memory
from danalab_annexes.theory.studies import MemoryFlags


def test_gains_give_the_ages_asked_for_as_far_as_they_can_grow():
    ages = np.asarray([[5.0] * 40, [*range(0, 80, 2)]])
    gain, followed = map(np.asarray, memory.gains(jnp.asarray(ages)))
    np.testing.assert_allclose(followed[0], np.minimum(np.arange(40), 5), atol=1e-6)
    np.testing.assert_allclose(followed[1], np.arange(40), atol=1e-5)  # an age grows by one a step at most
    # The age is that of the explicit weights of all gradients.
    weights = np.asarray([gain[0, i] * np.prod(1 - gain[0, i + 1 :]) for i in range(40)])
    assert weights.sum() == pytest.approx(1)
    assert weights @ np.arange(39, -1, -1) == pytest.approx(followed[0, -1], rel=1e-5)


@pytest.mark.parametrize(("kind", "tolerance"), [("linear", 0.03), ("sign", 0.15)])
def test_the_moments_are_those_of_simulated_runs(kind, tolerance):
    steps, batch, fresh, runs = 80, 2.0, 0.1, 20_000
    spectrum = binned_spectrum(0.6, 0.3, 12, 0.05)
    gain = np.asarray(memory.gains(jnp.minimum(jnp.arange(steps) / 9.0, 4.0)))[0]
    lr = (0.1 if kind == "linear" else 0.03) * memory.schedule(steps)
    constants = tuple(map(jnp.asarray, (spectrum.lam, spectrum.rho, spectrum.multiplicity, spectrum.limit)))
    expected = float(memory.run(constants, kind, jnp.asarray(gain), jnp.asarray(lr), batch, fresh))
    draw, lam = np.random.default_rng(0), spectrum.lam
    x, m = np.tile(np.sqrt(spectrum.rho), (runs, 1)), np.zeros((runs, 12))
    for a, h in zip(gain, lr, strict=True):
        risk = spectrum.limit + 0.5 * (x * x).mean(axis=0) @ lam
        noise = (2 * lam * risk + lam**2 * (x * x).mean(axis=0)) / batch
        g = lam * x + np.sqrt(noise) * draw.standard_normal(x.shape)
        m += a * (g - m)
        u = fresh * g + (1 - fresh) * m
        x = x - h * (np.sign(u) if kind == "sign" else u)
    assert 0.5 * (x * x).mean(axis=0) @ lam == pytest.approx(expected, rel=tolerance)


@pytest.mark.slow
def test_the_best_path_is_behind_no_path_it_begins_from():
    study = memory.compute(MemoryFlags(d=50, batches=(1.0,), noises=(0.1,), horizons=(60, 120), descents=15))
    rows = study.findings["excess risk at the end, over that of the best path"]
    assert len(rows) == 6
    for row in rows:
        assert min(row["best constant"], row["log time"], row["follows the rate"]) >= 1
    assert study.draw_figure(study).axes


def test_settings_out_of_range_are_refused():
    with pytest.raises(UserError, match="horizons is"):
        memory.compute(MemoryFlags(horizons=()))
    with pytest.raises(UserError, match="fresh is 2"):
        memory.compute(MemoryFlags(fresh=2.0))
