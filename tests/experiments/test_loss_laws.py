import math
from dataclasses import replace

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.experiments.loss_laws import fit_joint_laws, fit_loss_law

C = np.geomspace(1e15, 1e19, 9)


def test_a_planted_saturated_law_is_recovered_under_noise():
    noise = np.exp(1e-4 * np.random.default_rng(0).standard_normal(len(C)))
    law = fit_loss_law(C, (1.7 + 300 * C**-0.13) * noise, n_bootstrap=50)
    assert law.terms[0][1] == pytest.approx(0.13, rel=0.05)
    assert pytest.approx(1.7, rel=0.05) == law.E
    assert 0.13 in law.intervals["alpha"]
    assert law.r2 > 0.9999


def test_a_planted_broken_law_is_recovered_with_its_steep_term_first():
    law = fit_loss_law(C, 1.7 + 30 * C**-0.1 + 5e3 * C**-0.25, "broken", n_bootstrap=0)
    assert [alpha for _, alpha in law.terms] == pytest.approx([0.25, 0.1], rel=0.05)


def test_chinchillas_law_is_recovered():
    N, D = (grid.ravel() for grid in np.meshgrid(np.geomspace(1e6, 1e9, 4), np.geomspace(1e8, 1e11, 4)))
    law = fit_loss_law((N, D), 1.69 + 406.4 * N**-0.34 + 410.7 * D**-0.28, "chinchilla", n_bootstrap=0)
    expected = {"E": 1.69, "A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28}
    assert law.coefficients == pytest.approx(expected, rel=0.05)
    assert law(1e9, 1e11) == pytest.approx(1.69 + 406.4 * 1e9**-0.34 + 410.7 * 1e11**-0.28, rel=1e-4)


def test_one_run_that_went_wrong_hardly_moves_the_law():
    loss = 1.7 + 300 * C**-0.13
    loss[4] *= 1.1
    assert fit_loss_law(C, loss, n_bootstrap=0).terms[0][1] == pytest.approx(0.13, rel=0.05)


def test_optimizers_fitted_together_share_what_no_compute_removes():
    laws = fit_joint_laws(
        {"a": (C, 1.7 + 300 * C**-0.13), "b": (C[2:], 1.7 + 200 * C[2:] ** -0.125)}, n_bootstrap=0
    )
    assert laws["a"].E == laws["b"].E == pytest.approx(1.7, rel=1e-3)
    assert laws["b"].terms[0][1] == pytest.approx(0.125, rel=1e-3)


def test_the_compute_for_a_loss_inverts_the_law():
    law = fit_loss_law(C, 1.7 + 300 * C**-0.13, n_bootstrap=0)
    for compute in (1e12, 1e17, 1e22):
        assert law.compute_for(float(law(compute))) == pytest.approx(compute, rel=1e-6)
    assert math.isinf(law.compute_for(law.E))
    assert math.isinf(law.compute_for(law.E / 2))
    for terms in (((300.0, 0.13), (300.0, 0.13)), ((1e9, 0.5), (3.0, 0.02)), ((300.0, 0.13), (0.0, 0.4))):
        two = replace(law, kind="broken", terms=terms)
        assert two.compute_for(float(two(1e15))) == pytest.approx(1e15, rel=1e-6)
    assert math.isinf(replace(law, terms=((300.0, 1e-5),)).compute_for(law.E + 1))


@pytest.mark.parametrize(("kind", "needed"), [("saturated", 4), ("broken", 6)])
def test_a_law_is_never_drawn_through_too_few_points(kind, needed):
    with pytest.raises(UserError, match=f"needs runs at {needed} different points, there are {needed - 1}"):
        fit_loss_law(np.repeat(C[: needed - 1], 3), np.repeat(C[: needed - 1] ** -0.1, 3), kind)


def test_a_failed_run_and_an_unknown_law_are_refused_by_name():
    with pytest.raises(UserError, match="adana: x and loss must be finite"):
        fit_joint_laws({"adana": (C, np.append(C[1:] ** -0.1, np.nan))})
    with pytest.raises(UserError, match="did you mean 'saturated'"):
        fit_loss_law(C, C**-0.1, "saturatd")


def test_laws_of_parameters_and_tokens_have_no_single_compute():
    N, D = (grid.ravel() for grid in np.meshgrid(np.geomspace(1e6, 1e9, 3), np.geomspace(1e8, 1e9, 3)))
    with pytest.raises(UserError, match="no single compute"):
        fit_loss_law((N, D), 2 + N**-0.3 + D**-0.2, "chinchilla", n_bootstrap=0).compute_for(2.1)


def test_a_single_run_a_size_has_an_interval_from_its_scatter_around_the_law_not_an_empty_one():
    noise = np.exp(2e-3 * np.random.default_rng(0).standard_normal(len(C)))
    law = fit_loss_law(C, (1.7 + 300 * C**-0.13) * noise, n_bootstrap=30)
    assert law.intervals["alpha"].high > law.intervals["alpha"].low + 1e-3


@pytest.mark.slow
def test_the_intervals_of_a_laws_coefficients_cover_the_truth_in_some_nine_simulated_ladders_of_ten():
    compute, covered = np.repeat(np.geomspace(1e14, 1e18, 6), 3), {"E": 0, "A": 0, "alpha": 0}
    for trial in range(200):
        noise = np.exp(2e-3 * np.random.default_rng(trial).standard_normal(len(compute)))
        law = fit_loss_law(compute, (1.7 + 300 * compute**-0.13) * noise, n_bootstrap=50)
        for name, truth in (("E", 1.7), ("A", 300.0), ("alpha", 0.13)):
            covered[name] += truth in law.intervals[name]
    assert min(covered.values()) >= 180


def test_parameters_and_tokens_that_go_together_are_no_chinchilla_law():
    N = np.geomspace(1e6, 1e9, 8)
    with pytest.raises(UserError, match="cannot be told apart; add runs"):
        fit_loss_law((N, 20 * N), 2 + N**-0.3, "chinchilla", n_bootstrap=0)
