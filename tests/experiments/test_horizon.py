"""From the rows of a simulated ladder to exponents, multipliers, tests and budgets."""

import json
import math

import pytest

from danalab.experiments.analysis import analyse
from danalab.experiments.horizon import budget_sentence
from experiments.planted_horizons import GAIN, SIZES, E, plant_horizons


def test_a_ladder_with_horizons_gives_multipliers_and_an_exponent():
    found = analyse(plant_horizons(1.15, noise=5e-4), n_bootstrap=20)
    horizon = found.horizon
    assert 1.15 in horizon.exponents["adana"].interval
    assert len(horizon.multipliers) == sum(map(len, SIZES.values()))
    for each in horizon.multipliers:
        assert each.value == pytest.approx(GAIN * each.horizon**0.15, rel=0.25)
    longest = [each for each in horizon.multipliers if each.horizon == max(SIZES[each.params])]
    assert all(each.extrapolated for each in longest), "the baseline was not trained as long"
    assert {each.n_seeds for each in horizon.tests} == {3}
    assert found.loss_laws["adamw"].kind == "chinchilla"
    assert E in found.loss_laws["adamw"].intervals["E"]
    json.dumps(found.as_dict(), allow_nan=False)


def test_one_horizon_has_no_exponent_and_one_seed_no_interval():
    assert analyse(plant_horizons(sizes={7_000: (1,), 14_000: (1,)}), n_bootstrap=0).horizon is None
    horizon = analyse(plant_horizons(seeds=1), n_bootstrap=20).horizon
    assert horizon.exponents["adana"].interval is None
    assert all(each.interval is None for each in horizon.multipliers)


def test_a_rung_that_the_baseline_lacks_is_left_out_with_a_note():
    rows = [
        row
        for row in plant_horizons()
        if row["opt"] == "adana" or row["settings"]["tokens_per_param"] != 1280
    ]
    assert max(each.horizon for each in analyse(rows, n_bootstrap=0).horizon.multipliers) == 16
    few = [row for row in rows if row["opt"] == "adamw" or row["tokens"] == 20 * 7_000]
    assert "adana: fewer than two horizons" in analyse(few, n_bootstrap=0).horizon.notes[0]


def test_budgets_count_trials_and_mark_edges():
    rows = plant_horizons(noise=0.0)
    found = analyse(rows, n_bootstrap=0)
    assert budget_sentence(found.tuned).startswith("Every optimizer had the same")
    for each in found.tuned:
        ((name, (values, found_best)),) = each.dials.items()
        mine = [row for row in rows if (row["opt"], row["params"]) == (each.opt, each.params) and row["seed"] == 0
                and row["tokens"] == 20 * each.params * each.horizon]  # fmt: skip
        best = min(mine, key=lambda row: row["final_loss"])["lr"]
        assert (name, found_best, len(each.trials), len(each.runs)) == ("lr", best, 4, 3)
        assert values == [0.5, 1.0, 1.41, 2.0]
        assert each.edges == ["lr"] * (best in (0.5, 2.0))
    fewer = [row for row in rows if row["opt"] == "adamw" or row["lr"] != 0.5]
    assert budget_sentence(analyse(fewer, n_bootstrap=0).tuned).startswith("Budgets differ")


def test_the_values_of_a_dial_are_those_with_all_else_equal():
    rows = plant_horizons(noise=0.0)
    extra = []
    for row in rows:
        row["settings"] |= {"omega": 8.0}
        if row["seed"] == 0 and row["lr"] == 1.0:
            for omega, change in ((4.0, 0.03), (16.0, -0.01)):
                moved = {**row, "name": f"{row['name']}-{omega}", "final_loss": row["final_loss"] + change}
                extra.append({**moved, "settings": {**row["settings"], "omega": omega}})
    tuned = analyse([*rows, *extra], n_bootstrap=0).tuned[0]
    assert tuned.dials["omega"] == ([4.0, 8.0, 16.0], 16.0)
    assert "omega" in tuned.edges


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("noise", [1.5e-3, 1e-2], ids=["quiet", "1%"])
@pytest.mark.parametrize("exponent", [1.0, 1.3])
def test_intervals_cover_a_planted_exponent(exponent, noise):
    """Of 40 ladders intervals contain the exponent in 90% at least."""
    covered, widths = 0, []
    for seed in range(40):
        found = analyse(plant_horizons(exponent, seed=seed, noise=noise), law="saturated", n_bootstrap=60)
        interval = found.horizon.exponents["adana"].interval
        covered += exponent in interval
        widths.append(math.log(interval.high / interval.low))
    print(
        f"exponent {exponent}, noise {noise}: covered {covered} of 40, median width {sorted(widths)[20]:.3f}"
    )
    assert covered >= 36
