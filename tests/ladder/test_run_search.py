"""The trials of a ladder: every optimizer has the same number, wherever its best lies."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.errors import UserError
from danalab.ladder.plan import LadderPlan, Rung
from danalab.ladder.run import LadderSearch
from danalab.scaling.rate_search import next_rate

RUNG = Rung({"d_model": 16, "n_layers": 1, "n_heads": 2}, 1.0)


def plan(**given):
    return LadderPlan(**{
        "opts": ("adamw", "adana"), "sizes": (dict(RUNG.size),), "horizons": (1,), "trials": 5, "fixed": {},
        "dials": {"all": {"decay": (1, 0.5, 2)}}, **given,
    })  # fmt: skip


def tuned(one, loss_of, opts=("adamw", "adana")):
    """TunedRungs and the names of all runs, for losses that are a function of the settings."""
    search, losses, names = LadderSearch(replace(one, opts=opts)), {}, []
    while cells := search.next_runs(losses, names)[1]:
        names += [cell.name for cell in cells]
        losses |= {cell.name: loss for cell in cells if math.isfinite(loss := loss_of(cell.settings))}
    return dict.fromkeys(opts) | {each.opt: each for each in search.results}, names


@settings(max_examples=25, deadline=None)
@given(st.floats(-4, 4), st.floats(-4, 4))
def test_budgets_are_equal_wherever_the_best_rates_lie(first, second):
    best = {"adamw": first, "adana": second}
    choices, names = tuned(plan(), lambda run: 3 + (math.log2(run["lr_multiplier"]) - best[run["opt"]]) ** 2)
    assert {choice.trials for choice in choices.values()} == {7}
    assert len(names) == len(set(names)) == 2 * (7 + 2)


def test_trials_go_beyond_an_edge_and_then_between_the_best_and_its_neighbour():
    assert next_rate({0.5: 3, 1: 2, 2: 1}, refine=False) == 4
    assert next_rate({0.5: 1, 1: 2, 2: 3}, refine=False) == 0.25
    assert next_rate({0.5: 2, 1: 1, 2: 3}, refine=False) is None
    assert next_rate({0.5: 2, 1: 1, 2: 3}, refine=True) == 0.7071
    assert next_rate({0.5: math.inf, 1: math.inf}, refine=True) is None


def test_a_dial_is_tuned_at_the_best_rate_and_seeds_repeat_the_best_settings():
    def loss(run):
        return 3 + math.log2(run["lr_multiplier"]) ** 2 + 0.1 * (run.get("omega") != 2.0)

    choices, names = tuned(plan(), loss, ("adana",))
    choice = choices["adana"]
    assert (choice.multiplier, choice.dials, choice.at_edge) == (1.0, {"decay": 0.5}, False)
    assert choice.gains["decay"] == pytest.approx(0.1)
    assert choice.loss == pytest.approx(3)
    assert names[-2:] == ["adana-d16-L1-H2-f1-lrx1-decay0.5-s1", "adana-d16-L1-H2-f1-lrx1-decay0.5-s2"]


def test_a_trial_of_several_seeds_counts_by_their_mean():
    def loss(run):  # seed 0 alone would choose 2 and a decay of 1
        lucky = run["seed"] == 0 and run["lr_multiplier"] == 2
        return 3 + math.log2(run["lr_multiplier"]) ** 2 - 1.5 * lucky + 0.1 * (run.get("omega") != 2.0)

    one = plan(trial_seeds=2, dials={"all": {"decay": (0.5, 1)}})
    choices, names = tuned(one, loss, ("adana",))
    assert (choices["adana"].multiplier, choices["adana"].dials) == (1.0, {"decay": 0.5})
    assert choices["adana"].losses["2"] == pytest.approx(3.25)
    assert len(names) == len(set(names)) == (5 + 1) * 2 + 1
    assert len(one.planned(RUNG)["adana"]) == len(names)
    with pytest.raises(UserError, match="trial_seeds is 4; it must be 1 to 3"):
        plan(trial_seeds=4)


def test_trials_of_a_batch_start_from_the_best_rate_of_the_nearest_batch_before():
    one = plan(batches=(8, 32, 2), dials={}, seeds=(0,))

    def loss(run):  # the best rate is 2 at 8 sequences and grows with the root of the batch
        return 3 + math.log2(run["lr_multiplier"] / (2 * math.sqrt(run["global_batch"] / 8))) ** 2

    _, names = tuned(one, loss, ("adana",))
    first = {b: [float(name.split("lrx")[1].split("-")[0]) for name in names if f"-b{b}-" in name] for b in (8, 32, 2)}
    assert first[8][:3] == [0.5, 1, 2]
    assert first[32][:3] == [1, 2, 4]
    assert first[2][:3] == [1, 2, 4]


def test_an_optimizer_whose_trials_all_fail_stops_alone():
    choices, names = tuned(plan(), lambda run: math.inf if run["opt"] == "adamw" else 3.0)
    assert choices["adamw"] is None
    assert choices["adana"] is not None
    assert sum(name.startswith("adamw") for name in names) == 3
