"""Which runs are repeats of each other."""

import json
from dataclasses import asdict

from danalab.ladder.fit.tuning import rate_trials, tune
from danalab.ladder.rows import read_ladder
from danalab.train.config.train_config import TrainConfig
from ladder.planted import plant


def test_rows_from_before_a_setting_existed_are_repeats_of_those_after(tmp_path):
    now = json.loads(json.dumps(asdict(TrainConfig(arch="enoki"))))
    rows = [
        {**row, "settings": {"arch": "enoki"} if row["seed"] == 0 else {**now, "lr": row["lr"]}}
        for row in read_ladder(plant(tmp_path))
    ]
    assert all(len(each.runs) == 3 and each.trials == 3 for each in tune(rows, "exact"))


def test_runs_of_another_value_are_other_trials(tmp_path):
    rows = [{**row, "settings": {"delta": 8.0 + row["seed"]}} for row in read_ladder(plant(tmp_path))]
    assert all(len(each.runs) == 1 and each.trials == 5 for each in tune(rows, "exact"))


def test_a_trial_is_the_mean_of_the_seeds_that_all_trials_have(tmp_path):
    one = read_ladder(plant(tmp_path))[0]
    rows = [
        {**one, "lr": lr, "seed": seed, "final_loss": 3 + lr + seed} for lr in (1.0, 2.0, 4.0) for seed in (0, 1, 2)
    ]
    (tuned,) = tune(rows, "exact")
    assert [row["final_loss"] for row in rate_trials(rows, tuned)] == [5, 6, 8]
    fewer = rate_trials(rows[:-1], tuned)
    assert [(row["final_loss"], row["trial_seeds"]) for row in fewer] == [(4.5, 2), (5.5, 2), (7.5, 2)]


def test_a_sweep_of_another_setting_has_as_many_trials_but_one_learning_rate_each(tmp_path):
    rows = read_ladder(plant(tmp_path, seeds=1, multipliers=(1.0,)))
    swept = [{**row, "settings": {"kappa": kappa, "lr": row["lr"]}} for row in rows for kappa in (0.7, 0.8, 0.9)]
    assert all((each.trials, len(each.rates), each.at_edge) == (3, 1, False) for each in tune(swept, "exact"))


def test_the_outermost_rate_of_several_is_at_the_edge(tmp_path):
    rows = [{**row, "final_loss": 3 + abs(row["lr_multiplier"] - 1)} for row in read_ladder(plant(tmp_path, seeds=1))]
    assert all(len(each.rates) == 3 and not each.at_edge for each in tune(rows, "exact"))
    lower_half = [row for row in rows if row["lr_multiplier"] <= 1]
    assert all(len(each.rates) == 2 and each.at_edge for each in tune(lower_half, "exact"))
