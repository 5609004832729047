"""rules.yaml: a fitted law feeds the next run."""

from __future__ import annotations

import pytest

from danalab.errors import UserError
from danalab.scaling import plan
from danalab.train.config.resolve import resolve
from danalab.train.config.rules import DecayRule, RateRule, Rules, read_rules
from danalab.train.config.train_config import TrainConfig
from train.config.test_config import Words

RULES = Rules(
    learning_rate=(
        RateRule(arch="enoki", opt="adana", global_batch=32, a=2.0, b=10.0, d=-0.5),
        RateRule(arch="enoki", opt="adana", global_batch=512, a=4.0, b=10.0, d=-0.5),
    ),
    weight_decay=(DecayRule(arch="enoki", opt="adana", omega=2.0),),
)


def test_rules_are_read_back_and_decide_rate_and_decay(tmp_path):
    file = tmp_path / "rules.yaml"
    RULES.write(file)
    assert read_rules(file) == RULES
    spec = resolve(TrainConfig(heads=4, rules=file, global_batch=500), Words())
    assert spec.peak_lr == 4.0 * (10.0 + spec.plan.non_emb_params) ** -0.5
    assert spec.lr_source == "--rules: fitted for adana on enoki at batch 512"
    usual = plan("enoki", "adana", 4, global_batch=500)
    assert spec.plan.weight_decay == usual.weight_decay / 2
    assert resolve(TrainConfig(heads=4, rules=file, lr=0.1), Words()).peak_lr == 0.1
    halved = resolve(TrainConfig(heads=4, rules=file, global_batch=500, lr_multiplier=0.5), Words())
    assert halved.peak_lr == spec.peak_lr / 2
    other = resolve(TrainConfig(heads=4, opt="adamw", rules=file), Words())
    assert other.peak_lr == plan("enoki", "adamw", 4).lr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "learning_rate and weight_decay are expected"),
        ("rates: []", "learning_rate and weight_decay are expected"),
        ("learning_rate: [{arch: enoki}]", "learning_rate.0.opt: Field required"),
        ("learning_rate: [{arch: e, opt: adana, global_batch: 0, a: 1, b: 1, d: 1}]", "global_batch"),
        ("weight_decay: [{arch: enoki, opt: adanna, omega: 1}]", "adana"),
        ("weight_decay: [{arch: enoki, opt: adana, omega: .inf}]", "omega"),
    ],
)
def test_a_malformed_file_is_refused_by_its_entry(tmp_path, text, message):
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_rules(file)
