"""What runs would take, before they run."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.experiments.cells import expand, portable_settings, resolved
from danalab.experiments.estimate import accelerator_rate, estimate, measured_rate
from danalab.hardware import named


def test_hours_follow_from_flops_and_a_named_accelerator(fixed, tmp_path):
    (one,) = estimate(expand({}, fixed, [{"opt": "adamw"}]), tmp_path, accelerator_rate("h100", 0.5))
    assert one["steps"] == 10
    assert one["tokens"] == 10 * 4 * 16
    assert one["device_hours"] == pytest.approx(one["flops"] / (0.5 * 989.4e12) / 3600)


@pytest.mark.parametrize("opt", ["adamw", "muon", "dana-muon"])
def test_hours_count_the_optimizers_own_products(opt, fixed, tmp_path):
    cells = expand({}, fixed, [{"opt": opt}])
    own = resolved(cells[0].config(tmp_path)).facts()["optimizer_flops"]
    (one,) = estimate(cells, tmp_path, accelerator_rate("h100", 0.5))
    assert one["device_hours"] == pytest.approx((one["flops"] + own) / (0.5 * 989.4e12) / 3600)
    assert (own > 0) == (opt != "adamw")


def test_a_measured_rate_is_that_of_the_same_optimizer_at_the_nearest_size():
    def row(opt, params, rate, batch=8):
        return {
            "opt": opt,
            "params": params,
            "batch": batch,
            "flops": 3600 * rate,
            "device_hours": 1.0,
            "final_loss": 3.0,
        }

    rows = [row("adamw", 1000, 5.0), row("adamw", 9000, 7.0), row("adana", 9000, 4.0)]
    rate: Any = measured_rate([*rows, {**row("adana", 10, 1.0), "final_loss": None}])
    for opt, params, expected in (
        ("adamw", 1500, 5.0),
        ("adamw", 8000, 7.0),
        ("adana", 10, 4.0),
        ("muon", 1000, 5.0),
    ):
        assert (
            rate(SimpleNamespace(opt=opt, model=SimpleNamespace(exact_params=params), global_batch=8))
            == expected
        )
    assert measured_rate([]) is None
    by_batch: Any = measured_rate([row("adamw", 1000, 5.0), row("adamw", 1000, 9.0, batch=64)])
    assert (
        by_batch(SimpleNamespace(opt="adamw", model=SimpleNamespace(exact_params=1000), global_batch=32))
        == 9.0
    )


def test_accelerators_are_found_as_people_type_them():
    assert named("rtx-4090") is named("4090") is named("RTX 4090")
    with pytest.raises(UserError, match=r"--gpu h10 .*did you mean"):
        named("h10")
    with pytest.raises(UserError, match="--mfu is 40"):
        accelerator_rate("h100", 40)


def test_a_ladder_is_planned_with_trials_and_seeds(fixed, tmp_path, capsys):
    (tmp_path / "ladder.yaml").write_text(json.dumps({
        "opts": ["adamw", "adana"], "sizes": [{"d_model": 16, "n_layers": 1, "n_heads": 2}], "seeds": [0, 1, 2],
        "fixed": {key: value for key, value in fixed.items() if key not in ("lr", "d_model", "n_layers", "n_heads")},
    }))  # fmt: skip
    command = [
        "ladder",
        str(tmp_path / "ladder.yaml"),
        "--dry-run",
        "--out",
        str(tmp_path / "out"),
        "--gpu",
        "a100",
    ]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["runs"]) == 2 * (5 + 2)
    assert told["device_hours"] == pytest.approx(sum(run["device_hours"] for run in told["runs"]))
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "adana d_model=16 n_layers=1 n_heads=2     7" in said
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_a_ladder_counts_every_trial_and_seed(fixed, tmp_path, capsys):
    common = {
        key: value for key, value in fixed.items() if key not in ("lr", "d_model", "n_layers", "n_heads")
    }
    del common["iterations"]
    (tmp_path / "ladder.yaml").write_text(json.dumps({
        "opts": ["adamw", "adana"], "sizes": [{"d_model": 16, "n_layers": 1, "n_heads": 2}], "horizons": [0.1, 0.2],
        "trials": 7, "dials": {"all": {"decay": [1, 0.5, 2]}}, "fixed": common,
    }))  # fmt: skip
    command = ["ladder", str(tmp_path / "ladder.yaml"), "--dry-run", "--out", str(tmp_path / "out")]
    command += ["--jobs", "2", "--gpu", "h100"]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["runs"]) == 2 * 2 * (5 + 2 + 2)
    assert told["wall_hours"] == pytest.approx(told["device_hours"] / 2)
    assert all(run["epochs"] > 0 for run in told["runs"])
    assert main(command) == 0
    assert "with 2 at a time" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_settings_say_nothing_of_the_machine():
    said = {"data": "/home/me/a,/home/me/b", "tokenizer": "bpe-512", "run_dir": "/x", "name": "y", "lr": 1.0}
    assert portable_settings(said) == {"data": "a,b", "tokenizer": "bpe-512", "lr": 1.0}
