"""The laws of a ladder feed the next run."""

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.experiments.analysis import analyse, fitted_rules
from danalab.experiments.rows import read_ladder
from danalab.train.config.rules import read_rules
from experiments.planted import plant

SETTINGS = {"arch": "enoki", "batch_size": 8, "acc_steps": 2, "omega": 3.0}


def test_fit_writes_the_laws_that_plan_and_train_read(tmp_path):
    rows = [{**row, "settings": SETTINGS, "batch": 16} for row in read_ladder(plant(tmp_path))]
    found = analyse(rows, n_bootstrap=0)
    rules = fitted_rules(found)
    (law,) = (rule for rule in rules.learning_rate if rule.opt == "adana")
    assert law.a * (law.b + 1e6) ** law.d == pytest.approx(float(found.lr_laws["adana"](1e6)))
    assert law.global_batch == 16
    assert rules.omega("enoki", "adamw") == 3.0
    rules.write(tmp_path / "rules.yaml")
    assert read_rules(tmp_path / "rules.yaml") == rules


@pytest.mark.slow
def test_rows_without_an_architecture_give_no_rules(tmp_path, capsys):
    assert (
        main(
            [
                "report",
                "--tables-only",
                str(plant(tmp_path)),
                "--bootstrap",
                "0",
                "--rules",
                str(tmp_path / "rules.yaml"),
            ]
        )
        == 2
    )
    assert "does not give its architecture" in capsys.readouterr().err
    flat = read_ladder(plant(tmp_path, multipliers=(1.0,)))
    with pytest.raises(UserError, match="gives no learning-rate law"):
        fitted_rules(analyse(flat, n_bootstrap=0))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("layers", "ruled"), [(lambda heads: 3 * heads // 4, True), (lambda heads: heads**2, False)]
)
def test_the_sizes_of_a_ladder_become_a_rule_where_they_follow_one(tmp_path, layers, ruled):
    rows = read_ladder(plant(tmp_path))
    heads = {params: i + 3 for i, params in enumerate(sorted({row["params"] for row in rows}))}
    for row in rows:
        n = heads[row["params"]]
        size = {"d_model": 16 * n, "n_layers": layers(n), "n_heads": n, "head_dim": 16, "mlp_dim": 40 * n}
        row["settings"], row["batch"] = {**SETTINGS, **size}, 16
    rules = fitted_rules(analyse(rows, n_bootstrap=0))
    if not ruled:
        assert rules.dimensions == ()
        return
    (rule,) = rules.dimensions
    assert (rule.arch, rule.head_dim, rule.layers_per_head, rule.mlp_ratio) == ("enoki", 16, 0.75, 2.5)
