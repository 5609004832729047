"""Predictions of the largest rung: written before it runs, kept, compared."""

import json
import math
from dataclasses import replace

import pytest

from danalab.errors import UserError
from danalab.ladder.analysis import analyse
from danalab.ladder.plan import LadderPlan, Rung
from danalab.ladder.run import LadderSearch, run_ladder
from danalab_annexes.ladder import preregistration
from danalab_annexes.ladder.preregistration import (
    FILE,
    largest_rung,
    outcomes,
    preregister,
    read_predictions,
    registered_table,
    require_points,
)
from ladder.planted_horizons import SIZES, loss_at, plant_horizons

SMALL, LARGE = {"d_model": 16, "n_layers": 1, "n_heads": 2}, {"d_model": 32, "n_layers": 2, "n_heads": 2}


@pytest.fixture
def plan(fixed, monkeypatch):
    monkeypatch.setattr(preregistration, "RESAMPLES", 20)
    common = {key: value for key, value in fixed.items() if key not in ("lr", "d_model", "n_layers", "n_heads")}
    del common["iterations"]
    return LadderPlan(opts=("adamw", "adana"), sizes=(SMALL, LARGE), horizons=(1, 4), fixed=common)


def test_the_largest_rung_waits_for_all_others(plan):
    assert largest_rung(plan) == Rung(LARGE, 4.0)
    plain = LadderPlan(opts=("adamw",), sizes=(SMALL, LARGE), fixed=plan.fixed)
    for one, horizon in ((plan, 80), (plain, 20)):
        search, ended = LadderSearch(one, largest_rung(one)), []
        while cells := search.next_runs(dict.fromkeys(ended, 3.0), ended)[1]:
            largest = [cell.settings["d_model"] == 32 and cell.settings.get("tokens_per_param", 20) == horizon
                       for cell in cells]  # fmt: skip
            assert any(largest) == all(largest) == (len(ended) >= len(one.opts) * 6 * (len(one.rungs()) - 1))
            ended += [cell.name for cell in cells]
        assert any(largest)
        assert {cell.settings["d_model"] for cell in LadderSearch(one).next_runs({}, [])[1]} == (
            {16} if one is plan else {16, 32}
        )


def test_a_prediction_is_written_once_and_compared(plan, tmp_path):
    rows = plant_horizons(1.15, noise=5e-4)
    made = preregister(tmp_path, plan, rows)
    assert {each.opt for each in made} == {"adamw", "adana"}
    written = json.loads((tmp_path / FILE).read_text())
    assert (written["law"], written["rung"]) == ("chinchilla", str(largest_rung(plan)))
    assert read_predictions(tmp_path) == made
    assert preregister(tmp_path, plan, plant_horizons(seed=9)) == made, "later runs do not change it"
    base = next(each for each in made if each.opt == "adamw")
    truth = loss_at(base.params, base.tokens / (20 * base.params))
    assert truth in base.interval
    row = {**rows[0], "params": base.params, "tokens": base.tokens, "final_loss": truth, "name": "largest"}
    found = outcomes(made, analyse([*rows, row], n_bootstrap=0).tuned)
    assert [each.is_inside for each in found] == [True, None]
    assert [line[-1] for line in registered_table(found)[1]] == ["yes", "-"]
    assert math.isclose(found[0].loss, truth)


def test_too_few_rungs_for_a_law_are_refused_before_they_run(plan, tmp_path):
    with pytest.raises(
        UserError, match="a chinchilla law needs 6 sizes and lengths besides the largest, the file has 3"
    ):
        run_ladder(tmp_path / "ladder", plan, executor="inline", procedures=["preregister"])
    assert not (tmp_path / "ladder").exists()
    require_points(replace(plan, horizons=(1, 2, 4, 8)))
    with pytest.raises(
        UserError, match="a saturated law needs 4 sizes and lengths besides the largest, the file has 3"
    ):
        require_points(replace(plan, sizes=(SMALL,), horizons=(1, 2, 4, 8)))


def test_a_known_loss_is_not_predicted(plan, tmp_path):
    rows = plant_horizons()
    probe = preregister(tmp_path, plan, rows)[0]
    (tmp_path / FILE).unlink()
    rows.append({**rows[0], "name": "begun", "params": probe.params, "tokens": probe.tokens})
    with pytest.raises(UserError, match=r"begun at the largest size and length .* has run"):
        preregister(tmp_path, plan, rows)
    few = [row for row in plant_horizons(sizes={7_000: SIZES[7_000][:2]}) if row["opt"] == "adamw"]
    with pytest.raises(UserError, match=r"the runs give no law \(loss law of adamw: a saturated law needs"):
        preregister(tmp_path, plan, few)
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(UserError, match=r"preregistered\.json: malformed: predictions"):
        read_predictions(tmp_path)
