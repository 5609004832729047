"""Which runs are repeats of each other."""

import json
from dataclasses import asdict

from danalab.ladder.rows import read_ladder
from danalab.ladder.tuning import tune
from danalab.train.config import TrainConfig
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
