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
    spec = resolve(TrainConfig(heads=4, rules=file, global_batch=512), Words())
    assert spec.lr == 4.0 * (10.0 + spec.model.non_emb_params) ** -0.5
    assert spec.lr_source == "--rules: fitted for adana on enoki at batch 512"
    usual = plan("enoki", "adana", 4, global_batch=512)
    assert spec.weight_decay == usual.weight_decay / 2
    assert resolve(TrainConfig(heads=4, rules=file, lr=0.1), Words()).lr == 0.1
    halved = resolve(TrainConfig(heads=4, rules=file, global_batch=512, lr_multiplier=0.5), Words())
    assert halved.lr == spec.lr / 2
    other = resolve(TrainConfig(heads=4, opt="adamw", rules=file), Words())
    assert other.lr == plan("enoki", "adamw", 4).lr


@pytest.mark.parametrize(("given", "used"), [(None, 2.0), (4.0, 4.0), (0.0, 0.0)])
def test_an_explicit_omega_wins_over_the_file(tmp_path, given, used):
    RULES.write(tmp_path / "rules.yaml")
    spec = resolve(TrainConfig(heads=4, rules=tmp_path / "rules.yaml", omega=given), Words())
    assert spec.omega == used
    assert spec.weight_decay == used / spec.wd_ts


def test_dimensions_of_the_file_replace_those_of_the_architecture(tmp_path):
    file = tmp_path / "rules.yaml"
    RULES.write(file)
    planned = resolve(TrainConfig(arch="gpt", heads=6, rules=file), Words()).model
    assert (planned.d_model, planned.n_layers, planned.head_dim, planned.mlp_dim) == (192, 2, 32, 480)
    assert (
        resolve(TrainConfig(arch="gpt", heads=3, rules=file), Words()).model.n_layers == 1
    )  # a third of three heads
    assert resolve(TrainConfig(arch="enoki", heads=6, rules=file), Words()).model.d_model == 384
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


def test_between_two_batches_of_a_file_the_rate_is_a_power_of_the_batch(tmp_path):
    file = tmp_path / "rules.yaml"
    RULES.write(file)
    rates = [
        resolve(TrainConfig(heads=4, rules=file, global_batch=batch, iterations=100), Words()).lr
        for batch in (8, 32, 128, 512, 1024)
    ]
    assert [rate / rates[0] for rate in rates] == pytest.approx([1, 1, 2**0.5, 2, 2])


ORIGINAL = """
enoki:
  head_dim: 64
  n_head_formula: "heads"
  n_layer_formula: "3 * heads // 4"    # 3 heads -> 2 layers, 12 heads -> 9 layers
  n_embd_formula: "heads * 64"
  mlp_hidden_formula: "4 * n_embd"
  non_emb_formula: "12 * n_embd**2 * n_layer"
  total_params_formula: "non_emb + 2 * n_embd * 50304"
  model: "enoki"
  weight_tying: false
  lr_formula:
    adamw: {a: 1.28e+1, b: 1.67e+4, d: -0.515}
    adana:
      "0.75": {a: 1.27e+1, b: 9.55e+3, d: -0.624}
      "0.85": {a: 2.25e+1, b: 1.22e+5, d: -0.618}
    dana-star-mk4-tau:
      "0.85": {a: 3.72e+3, b: 3.70e+3, d: -0.894}
  lr_formula_512:
    adamw: {a: null, b: null, d: null}
    adana:
      "0.85": {a: 8.53e+1, b: 3.04e+4, d: -0.654}
"""
SUMMARY = """
enoki:
  head_dim: 64
  n_layer_formula: "3 * heads // 4"
  n_embd_formula: "heads * head_dim"
  mlp_hidden_formula: "4 * n_embd"
  lr_formulas:
    adana: {a: 3.72e3, b: 3.70e3, d: -0.894}   # LR = a * (b + P)^d

qwen3:
  head_dim: 128
  n_layer_formula: "2 * heads"
  n_embd_formula: "heads * head_dim"
  mlp_hidden_formula: "3 * n_embd"
"""


def test_the_originals_scaling_rules_are_read(tmp_path):
    (tmp_path / "a.yaml").write_text(ORIGINAL)
    (tmp_path / "b.yaml").write_text(SUMMARY)
    for settings in ({}, {"kappa": 0.75}, {"opt": "adamw"}, {"global_batch": 512}, {"global_batch": 100}):
        usual = resolve(TrainConfig(heads=6, **settings), Words()).facts()
        ruled = resolve(TrainConfig(heads=6, rules=tmp_path / "a.yaml", **settings), Words()).facts()
        assert ruled.pop("lr_source").startswith("--rules: ")
        usual.pop("lr_source")
        assert ruled == usual
    config = resolve(TrainConfig(heads=6, rules=tmp_path / "b.yaml"), Words())
    assert config.lr == 3.72e3 * (3.70e3 + config.model.non_emb_params) ** -0.894
    large = resolve(TrainConfig(arch="qwen3", heads=4, rules=tmp_path / "b.yaml"), Words())
    assert large.facts() == resolve(TrainConfig(arch="qwen3", heads=4), Words()).facts()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("3 * heads // 4", "max(1, heads)"), "max.1, heads. is not a product with heads"),
        (("3 * heads // 4", "3 * heads // 0"), "is not a product with heads"),
        (("heads * 64", "heads * 32"), "enoki.n_embd_formula is heads . 32; it must be heads . head_dim"),
        (("12 * n_embd**2 * n_layer", "13 * n_embd**2 * n_layer"), "enoki.non_emb_formula"),
        (("weight_tying: false", "weight_tying: true"), "enoki.weight_tying"),
        (("weight_tying: false", "weights: 3"), "enoki.weights is no key of a scaling_rules"),
        (('model: "enoki"', 'model: "enoky"'), "enoky"),
        (("adamw: {a: 1.28e+1", "adanw: {a: 1.28e+1"), "adanw"),
        (
            ("{a: 1.28e+1, b: 1.67e+4, d: -0.515}", "{a: 1.28e+1, b: 1.67e+4}"),
            "learning_rate.0.d: Field required",
        ),
    ],
)
def test_an_original_file_with_other_formulas_is_refused(tmp_path, changed, message):
    file = tmp_path / "rules.yaml"
    assert changed[0] in ORIGINAL
    file.write_text(ORIGINAL.replace(*changed))
    with pytest.raises(UserError, match=message):
        read_rules(file)
