"""Settings of optimizers: seven flags that are fields of the record, all others by --set NAME=VALUE."""

from __future__ import annotations

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.optim import settings_of
from danalab.train.config.flags import parse
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from train.config.test_config import Words

SMALL = ["--d-model", "64", "--n-layers", "1", "--n-heads", "1", "--iterations", "9", "--lr", "1e-3"]


def read(*words: str) -> TrainConfig:
    return parse(TrainConfig, [*SMALL, *words], "danalab train")


def chosen(*words: str) -> dict:
    config = resolve(read(*words), Words())
    return config.settings_of_optimizer(settings_of(config.opt))


def test_values_have_their_types():
    given = read("--set", "betas=0.9,0.95", "eps=1e-10", "fused=false", "wd-ts=none", "--set=name=word")
    assert given.optimizer_settings == {
        "betas": [0.9, 0.95],
        "eps": 1e-10,
        "fused": False,
        "name": "word",
        "wd_ts": None,
    }


def test_a_file_has_a_mapping_and_flags_win(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("opt: adamw\noptimizer_settings: {eps: 1.0e-9, betas: [0.8, 0.9]}\n")
    given = read("--config", str(file), "--set", "eps=1e-7")
    assert given.optimizer_settings == {"eps": 1e-7, "betas": [0.8, 0.9]}


def test_beta1_and_beta2_set_one_of_the_betas():
    assert chosen("--opt", "adamw", "--beta1", "0.8")["betas"] == (0.8, 0.999)
    assert chosen("--opt", "adamw", "--beta2", "0.95")["betas"] == (0.9, 0.95)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--opt lion --set rho=1", "--rho: lion has no rho; it has "),
        ("--opt adana --clipsnr 2", "--clipsnr: adana has no clipsnr"),
        ("--opt adana --set horizon=10", "the run's length is --iterations"),
        ("--opt adana --set kappa=0.8", "give it as --kappa"),
        ("--opt adamw --set betas", "--set betas: NAME=VALUE is expected"),
        ("--opt adamw --betas 0.9,0.95", "a setting of the optimizer is given by --set NAME=VALUE"),
        ("--opt adana --kappa nan", "--kappa nan: must be "),
        ("--opt lionn", "did you mean 'lion'"),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(words, reason):
    with pytest.raises(UserError) as error:
        chosen(*words.split())
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_printed_configuration_is_read_back(tmp_path, capsys):
    words = ["train", *SMALL, "--opt", "adamw", "--set", "betas=0.9,0.95", "--data", "stdlib"]
    assert main([*words, "--print-config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "run.yaml").write_text(printed)
    assert main(["train", "--config", str(tmp_path / "run.yaml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
