"""Settings of the chosen optimizer as flags and in files, and the list that shows them."""

from __future__ import annotations

import json

import pytest

from danalab.cli._shared.flags import parse
from danalab.cli.app import main
from danalab.errors import UserError
from danalab.optim import list_optimizers
from danalab.train.config.train_config import TrainConfig


def settings(*arguments: str) -> dict:
    return parse(TrainConfig, list(arguments), prog="danalab train", description="").flags.optimizer_settings


def test_every_spelling_and_type_of_a_setting_is_understood():
    assert settings("--opt", "lion", "--betas", "0.95,0.98") == {"betas": [0.95, 0.98]}
    assert settings("--opt", "lion", "--betas", "0.95", "0.98", "--lr", "1") == {"betas": [0.95, 0.98]}
    assert settings("--opt=sophiag", "--hessian_interval=5") == {"hessian_interval": 5}
    assert settings("--opt", "sophia", "--hessian-interval", "5", "--rho", "1e-2") == {
        "hessian_interval": 5,
        "rho": 0.01,
    }
    assert settings("--opt", "soap", "--merge-dims", "--heads", "3") == {"merge_dims": True}
    assert settings("--opt", "soap", "--merge-dims", "false") == {"merge_dims": False}
    assert settings("--opt", "soap", "--no-correct-bias") == {"correct_bias": False}
    assert settings("--opt", "mars", "--mars-type", "lion") == {"mars_type": "lion"}
    assert settings("--opt", "adafactor", "--beta2-decay", "-0.7", "--eps", "none,1e-4") == {
        "beta2_decay": -0.7,
        "eps": [None, 1e-4],
    }
    assert settings("--opt", "muon", "--ns-dtype", "none", "--ns-steps", "6") == {"ns_dtype": None, "ns_steps": 6}
    assert settings("--opt", "adana", "--alpha-offset", "0") == {"alpha_offset": 0.0}
    assert settings("--opt", "adana", "--omega", "2", "--alpha-offset", "0") == {"alpha_offset": 0.0, "omega": 2.0}
    assert settings("--kappa=0.9", "--gamma_3_factor", "2") == {"gamma3": 2.0, "kappa": 0.9}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--opt", "lion", "--bta1", "0.9"], "unknown flag --bta1 .did you mean --beta1.*--opt lion"),
        (["--opt", "soap", "--precondition-frequence", "3"], "did you mean --precondition-frequency"),
        (["--opt", "lion", "--rho", "0.1"], "unknown flag --rho.*--opt lion"),
        (["--opt", "lion", "--betas", "0.9"], "--betas is '0.9'; it must be 2 numbers, as in 0.9,0.99"),
        (["--opt", "soap", "--merge-dims=perhaps"], "--merge-dims 'perhaps': true or false is expected"),
        (["--opt", "sophia", "--hessian-interval", "2.5"], "must be an integer"),
        (["--opt", "sophia", "--rho"], "--rho needs a value"),
        (["--opt", "sophia", "--rho", "none"], "must be a number"),
        (["--opt", "adana", "--horizon", "100"], "--horizon: the run's length is --iterations"),
        (["--opt", "lionn", "--betas", "1"], "did you mean 'lion'"),
        (["--optimizer-settings", "x"], "unknown flag --optimizer-settings"),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        settings(*arguments)
    assert "\n" not in str(caught.value)


def test_files_hold_settings_beside_the_flags_or_by_themselves_and_flags_win(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("opt: sophia\nrho: 0.1\nhessian-interval: 5\nlr: 1e-3\n")
    assert settings("--config", str(file)) == {"hessian_interval": 5, "rho": 0.1}
    assert settings("--config", str(file), "--rho", "0.2") == {"hessian_interval": 5, "rho": 0.2}
    file.write_text("opt: sophia\noptimizer_settings: 3\n")
    with pytest.raises(UserError, match="a mapping of settings is expected, not 3"):
        settings("--config", str(file))
    file.write_text("opt: sophia\noptimizer_settings: {rho: 0.3}\n")
    assert settings("--config", str(file)) == {"rho": 0.3}
    file.write_text("opt: sophia\nroh: 0.3\n")
    with pytest.raises(UserError, match=r"unknown key 'roh' .did you mean 'rho'"):
        settings("--config", str(file))


def test_a_printed_configuration_is_read_back(tmp_path):
    arguments = ["--opt", "lion", "--betas", "0.95,0.98", "--beta1", "0.9"]
    parsed = parse(TrainConfig, arguments, prog="x", description="")
    file = tmp_path / "run.yaml"
    file.write_text(parsed.as_yaml())
    assert parse(TrainConfig, ["--config", str(file)], prog="x", description="").flags == parsed.flags


def test_help_lists_the_settings_of_the_optimizer_that_is_named(capsys):
    for arguments, expected in (
        (["train", "--opt", "soap", "--help"], "--precondition-frequency INTEGER"),
        (["train", "--help"], "danalab train --opt NAME --help"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert expected in capsys.readouterr().out


def test_the_list_shows_what_each_can_do_and_one_shows_its_learning_rate(capsys):
    assert main(["optim", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name} " in shown for name in list_optimizers())
    assert main(["optim", "list", "--opt", "lion"]) == 0
    shown = capsys.readouterr().out
    assert "learning rate on qwen3" in shown
    assert "arXiv 2302.06675" in shown
    assert "danalab[baselines]" in shown
    assert main(["optim", "list", "--json"]) == 0
    for spec in json.loads(capsys.readouterr().out)["optimizers"]:
        assert spec["modes"][:2] == ["single", "ddp"]
        assert spec["learning_rate"]["enoki"]["source"]
        assert all(setting["help"] and setting["kind"] for setting in spec["settings"].values())
