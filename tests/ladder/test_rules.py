"""The laws of a ladder feed the next run."""

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.ladder.analysis import analyse
from danalab.ladder.rules import fitted_rules
from danalab.ladder.runs.rows import read_ladder
from danalab.train.config.rules import read_rules
from ladder.planted import plant

SETTINGS = {"arch": "enoki", "batch_size": 8, "acc_steps": 2, "omega": 3.0}


def test_fit_writes_the_laws_that_plan_and_train_read(tmp_path):
    rows = [{**row, "settings": SETTINGS} for row in read_ladder(plant(tmp_path))]
    found = analyse(rows, n_bootstrap=0)
    rules = fitted_rules(found)
    law, source = rules.law("enoki", "adana", 16)
    assert law(1e6) == pytest.approx(float(found.lr_laws["adana"](1e6)))
    assert "batch 16" in source
    assert rules.omega("enoki", "adamw") == 3.0
    rules.write(tmp_path / "rules.yaml")
    assert read_rules(tmp_path / "rules.yaml") == rules


def test_rows_without_an_architecture_give_no_rules(tmp_path, capsys):
    assert main(["fit", str(plant(tmp_path)), "--bootstrap", "0", "--rules", str(tmp_path / "rules.yaml")]) == 2
    assert "does not give its architecture" in capsys.readouterr().err
    flat = read_ladder(plant(tmp_path, multipliers=(1.0,)))
    with pytest.raises(UserError, match="gives no learning-rate law"):
        fitted_rules(analyse(flat, n_bootstrap=0))
