"""rules.yaml: a fitted law feeds the next run."""

from __future__ import annotations

import pytest

from danalab.errors import UserError
from danalab.scaling import plan
from danalab.train.config.resolve import resolve
from danalab.train.config.rules import DecayRule, RateRule, Rules, SizeRule, read_rules
from danalab.train.config.train_config import TrainConfig
from train.config.test_config import Words

RULES = Rules(
    learning_rate=(
        RateRule(arch="enoki", opt="adana", global_batch=32, a=2.0, b=10.0, d=-0.5),
        RateRule(arch="enoki", opt="adana", global_batch=512, a=4.0, b=10.0, d=-0.5),
    ),
    weight_decay=(DecayRule(arch="enoki", opt="adana", omega=2.0),),
    dimensions=(SizeRule(arch="gpt2", head_dim=32, layers_per_head=1 / 3, mlp_ratio=2.5),),
)


def test_rules_are_read_back_and_decide_rate_and_decay(tmp_path):
    file = tmp_path / "rules.yaml"
    RULES.write(file)
    assert read_rules(file) == RULES
    spec = resolve(TrainConfig(heads=4, rules=file, global_batch=500), Words())
    assert spec.plan.lr == 4.0 * (10.0 + spec.plan.non_emb_params) ** -0.5
    assert spec.plan.lr_source == "--rules: fitted for adana on enoki at batch 512"
    usual = plan("enoki", "adana", 4, global_batch=500)
    assert spec.plan.weight_decay == usual.weight_decay / 2
    assert resolve(TrainConfig(heads=4, rules=file, lr=0.1), Words()).plan.lr == 0.1
    halved = resolve(TrainConfig(heads=4, rules=file, global_batch=500, lr_multiplier=0.5), Words())
    assert halved.plan.lr == spec.plan.lr / 2
    other = resolve(TrainConfig(heads=4, opt="adamw", rules=file), Words())
    assert other.plan.lr == plan("enoki", "adamw", 4).lr


@pytest.mark.parametrize(("given", "used"), [(None, 2.0), (4.0, 4.0), (0.0, 0.0)])
def test_an_explicit_omega_wins_over_the_file(tmp_path, given, used):
    RULES.write(tmp_path / "rules.yaml")
    spec = resolve(TrainConfig(heads=4, rules=tmp_path / "rules.yaml", omega=given), Words())
    assert spec.config.omega == used
    assert spec.plan.weight_decay == used / spec.plan.wd_ts


def test_dimensions_of_the_file_replace_those_of_the_architecture(tmp_path):
    file = tmp_path / "rules.yaml"
    RULES.write(file)
    planned = resolve(TrainConfig(arch="gpt", heads=6, rules=file), Words()).plan
    assert (planned.d_model, planned.n_layers, planned.head_dim, planned.mlp_dim) == (192, 2, 32, 480)
    assert resolve(TrainConfig(arch="gpt", heads=3, rules=file), Words()).plan.n_layers == 1  # a third of three heads
    assert resolve(TrainConfig(arch="enoki", heads=6, rules=file), Words()).plan.d_model == 384
    with pytest.raises(UserError, match="less than one layer"):
        resolve(TrainConfig(arch="gpt", heads=2, rules=file), Words())
    with pytest.raises(UserError, match="--d-model is 192, not 384"):
        resolve(TrainConfig(arch="gpt", heads=6, d_model=384, rules=file), Words())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "learning_rate, weight_decay, dimensions are expected"),
        ("rates: []", "learning_rate, weight_decay, dimensions are expected"),
        ("dimensions: [{arch: enoky, head_dim: 64, layers_per_head: 1, mlp_ratio: 4}]", "enoki"),
        ("dimensions: [{arch: enoki, head_dim: 64, layers_per_head: 0, mlp_ratio: 4}]", "layers_per_head"),
        ("learning_rate: [{arch: enoki}]", "learning_rate.0.opt: Field required"),
        ("learning_rate: [{arch: enoki, opt: adana, global_batch: 0, a: 1, b: 1, d: 1}]", "global_batch"),
        ("weight_decay: [{arch: enoki, opt: adanna, omega: 1}]", "adana"),
        ("weight_decay: [{arch: enoki, opt: adana, omega: .inf}]", "omega"),
    ],
)
def test_a_malformed_file_is_refused_by_its_entry(tmp_path, text, message):
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_rules(file)
