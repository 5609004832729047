"""The definition of a ladder with horizons: lengths, weight decay, the order of rungs, equal budgets."""

import math
from pathlib import Path

import pytest
import yaml

from danalab.errors import UserError
from danalab.ladder.plan import LadderPlan, Rung, read_plan

SMALL, LARGE = {"d_model": 16, "n_layers": 1, "n_heads": 2}, {"d_model": 32, "n_layers": 1, "n_heads": 2}


def plan(**given):
    return LadderPlan(**{"opts": ("adamw", "adana"), "sizes": (SMALL, LARGE), "fixed": {}, **given})


def test_a_horizon_is_twenty_tokens_a_parameter():
    one = plan(horizons=(1, 4))
    cell = one.cell("adana", Rung(SMALL, 4.0), 0.5, 0)
    assert cell.settings["tokens_per_param"] == 80
    assert cell.name == "adana-d16-L1-H2-f4-lrx0.5-s0"


def test_short_horizons_come_first_and_a_size_may_have_its_own():
    rungs = plan(sizes=({**SMALL, "horizons": [1, 4, 16]}, LARGE), horizons=(4, 1)).rungs()
    assert [(rung.size["d_model"], rung.horizon) for rung in rungs] == [(16, 1), (32, 1), (16, 4), (32, 4), (16, 16)]


def test_trials_start_from_the_shorter_horizon_of_the_size_else_from_the_smaller_size():
    one = plan(horizons=(1, 4))
    before = {(rung.size["d_model"], rung.horizon): one.rung_before(rung) for rung in one.rungs()}
    assert before[16, 1] is None
    assert before[32, 1] == Rung(SMALL, 1.0)
    assert before[16, 4] == Rung(SMALL, 1.0)
    assert before[32, 4] == Rung(LARGE, 1.0)
    alone = plan()
    assert alone.rung_before(alone.rungs()[1]) is None


@pytest.mark.parametrize(("opt", "c"), [("adamw", 8.0), ("muon", 8.0), ("adana", 2.0), ("adamw-decaying-wd", 2.0)])
def test_weight_decay_grows_with_the_root_of_the_horizon(opt, c):
    one = plan(opts=(opt,), horizons=(1, 9), decay_law="sqrt", dials={"all": {"decay": (1, 0.5)}})
    assert one.cell(opt, Rung(SMALL, 9.0), 1.0, 0).settings["omega"] == pytest.approx(c * math.sqrt(9))
    assert one.cell(opt, Rung(SMALL, 9.0), 1.0, 0, {"decay": 0.5}).settings["omega"] == pytest.approx(c * 1.5)


def test_a_ladder_measures_the_law_of_the_horizon_and_takes_it_only_where_the_file_says_so():
    assert plan().cell("adamw", Rung(SMALL, 4.0), 1.0, 0).settings["horizon_law"] == "none"
    taken = plan(fixed={"horizon_law": "measured"}).cell("adamw", Rung(SMALL, 4.0), 1.0, 0)
    assert taken.config(Path("run")).horizon_law == "measured"


def test_batches_are_nearest_neighbours_in_the_order_given_and_stand_in_names():
    one = plan(sizes=(SMALL,), horizons=(1, 4), batches=(8, 32, 2, 4))
    assert [(rung.horizon, rung.batch) for rung in one.rungs()] == [(f, b) for f in (1, 4) for b in (8, 32, 2, 4)]
    before = {(rung.horizon, rung.batch): one.rung_before(rung) for rung in one.rungs()}
    assert before[1, 8] is None
    assert before[4, 8] == Rung(SMALL, 1.0, 8)
    for batch, nearest in ((32, 8), (2, 8), (4, 8)):
        assert before[4, batch] == Rung(SMALL, 4.0, nearest)
    cell = one.cell("adana", Rung(SMALL, 4.0, 32), 0.5, 0)
    assert cell.settings["global_batch"] == 32
    assert cell.name == "adana-d16-L1-H2-f4-b32-lrx0.5-s0"
    alone = plan(batches=(8, 2))
    assert alone.has_steps
    assert alone.rung_before(Rung(SMALL, None, 2)) == Rung(SMALL, None, 8)
    assert alone.cell("adana", Rung(SMALL, None, 8), 1.0, 0).name == "adana-d16-L1-H2-b8-lrx1-s0"


def test_a_half_life_in_tokens_gives_each_batch_its_setting():
    half_life = {"adamw-half-life": {"opt": "adamw", "beta2": "0.95^(batch / 128)"}}
    one = plan(opts=("adamw", "adamw-half-life"), variants=half_life, batches=(2, 128))
    of = {b: one.cell("adamw-half-life", Rung(SMALL, None, b), 1.0, 0).settings["beta2"] for b in (2, 128)}
    assert of == {2: pytest.approx(0.95 ** (1 / 64), rel=1e-5), 128: 0.95}
    with pytest.raises(UserError, match=r"adamw-half-life: beta2 is 0.95\^\(batch / 128\); it needs batches"):
        one.cell("adamw-half-life", Rung(SMALL, None), 1.0, 0)


def test_without_a_law_the_rules_decide_and_a_dial_is_a_factor_on_them():
    one = plan(dials={"all": {"decay": (1, 0.5)}})
    assert "omega" not in one.cell("adamw", Rung(SMALL, None), 1.0, 0).settings
    assert one.cell("adamw", Rung(SMALL, None), 1.0, 0, {"decay": 0.5}).settings["omega"] == 2.0


def test_a_variant_has_its_own_settings_and_label():
    one = plan(opts=("adana", "adana-slow"), variants={"adana-slow": {"opt": "adana", "kappa": 0.75}})
    cell = one.cell("adana-slow", Rung(SMALL, None), 1.0, 0)
    assert (cell.label, cell.settings["opt"], cell.settings["kappa"]) == ("adana-slow", "adana", 0.75)
    assert cell.name.startswith("adana-slow-d16")
    assert one.cell("adana", Rung(SMALL, None), 1.0, 0).label is None


def test_dials_differ_between_optimizers_but_not_in_number():
    dials = {"all": {"decay": (1, 0.5, 2)}, "muon": {"adamw_lr": (0.003, 0.001, 0.01)}}
    one = plan(opts=("adamw", "muon"), trials=4, dials=dials)
    assert one.least_trials("adamw") == one.least_trials("muon") == 6
    with pytest.raises(UserError, match=r"dials: muon has \[2\] values on its dials, adamw \[3\]; budgets are equal"):
        plan(opts=("adamw", "muon"), dials={**dials, "muon": {"adamw_lr": (0.003, 0.001)}})


def test_names_in_a_file_are_those_of_opts(tmp_path):
    file = tmp_path / "ladder.yaml"
    content = {
        "opts": ["adamw", "dana-star-mk4"], "sizes": [SMALL], "horizons": [1, 4], "decay_law": "sqrt", "trials": 4,
        "start": {"dana-star-mk4": 0.5},
        "dials": {"dana-star-mk4": {"decay": [1, 2]}, "all": {"scheduler": ["cos", "linear"]}},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content))
    read = read_plan(file)
    assert read.start == {"dana-star-mk4": 0.5}
    assert read.dials_of("dana-star-mk4") == {"decay": (1, 2)}
    assert read.dials_of("adamw") == {"scheduler": ("cos", "linear")}


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"horizons": [0]}, "horizons .* finite and positive"),
        ({"sizes": [{**SMALL, "horizons": [1, -1]}]}, "horizons of a size are .* finite and positive"),
        ({"sizes": [{**SMALL, "horizons": [1]}, LARGE]}, "some sizes have horizons"),
        ({"horizons": [1], "fixed": {"iterations": 5}}, "fixed has --iterations beside horizons"),
        ({"batches": [8, 0]}, "batches .* finite and positive"),
        ({"batches": [8, 8]}, "one of its batches twice"),
        ({"batches": [8, 2.5]}, "expected is something like batches"),
        ({"batches": [8], "fixed": {"global_batch": 8}}, "fixed has --global-batch beside batches"),
        ({"decay_law": "sqrt"}, "give horizons"),
        ({"decay_law": "root"}, "decay_law root"),
        ({"horizons": [1], "decay_law": "sqrt", "fixed": {"omega": 4}}, "fixed has --omega beside a decay law"),
        ({"trials": 2}, "at least as many as multipliers"),
        ({"trials": 4, "extensions": 1}, "both trials and extensions"),
        ({"start": {"adam": 1}}, "start has 'adam'.*did you mean 'adamw'"),
        ({"start": {"adamw": 0}}, "a positive factor"),
        ({"dials": {"all": {"decay": 2}}}, "expected is a list of values"),
        ({"variants": {"adana": {"kappa": 0.75}}}, "adana has no opt"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(tmp_path, given, what):
    file = tmp_path / "ladder.yaml"
    file.write_text(yaml.safe_dump({"opts": ["adamw", "adana"], "sizes": [SMALL, LARGE], **given}))
    with pytest.raises(UserError, match=what):
        read_plan(file)
