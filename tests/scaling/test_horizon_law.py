"""The peak rate and the strength of weight decay of runs longer than 20 tokens per parameter."""

import math

import pytest

from danalab.cli.app import main
from danalab.data.vocabulary import VocabularyInfo
from danalab.scaling import learning_rate, plan
from danalab.scaling.optimizers import FACTS
from danalab.scaling.plan import OMEGA
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig

GPT2 = VocabularyInfo("fineweb", "gpt2", 50304, 50304, 50256)
MEASURED = [name for name in FACTS if FACTS[name].horizon]


@pytest.mark.parametrize("opt", MEASURED)
def test_the_horizon_of_the_published_laws_has_their_rate_and_decay(opt):
    assert plan("enoki", opt, 6) == plan("enoki", opt, 6, horizon_law="none")
    assert plan("enoki", opt, 6, tokens_per_param=5) == plan("enoki", opt, 6, tokens_per_param=5, horizon_law="none")


@pytest.mark.parametrize("opt", MEASURED)
def test_a_longer_run_has_f_to_the_h_of_the_rate_and_the_root_of_f_of_the_decay(opt):
    long = plan("enoki", opt, 6, tokens_per_param=320, decay_bound=0)
    without = plan("enoki", opt, 6, tokens_per_param=320, decay_bound=0, horizon_law="none")
    h, _, _ = FACTS[opt].horizon or (math.nan,) * 3
    f = long.tokens / 20 / long.total_params
    assert long.lr == pytest.approx(without.lr * f**h)
    coupled = FACTS[opt].decay == "coupled"
    assert long.weight_decay == pytest.approx(without.weight_decay * math.sqrt(f) / (f**h if coupled else 1))
    sizes = "3k" if opt == "dana-muon" else "3k to 10k"
    assert f"x {16**h:.2g} for f = 16, measured at {sizes} parameters" in long.lr_source
    assert (long.omega, long.steps) == (OMEGA, without.steps)
    law = learning_rate("enoki", opt, long.non_emb_params, tokens_per_param=320)
    assert law == pytest.approx(long.lr, rel=1e-3)
    assert "beyond f = 64" in plan("enoki", opt, 3, tokens_per_param=5000).lr_source


def test_explicit_rates_strengths_and_rules_are_left_alone(tmp_path):
    given = plan("enoki", "adamw", 6, tokens_per_param=320, lr=1e-3)
    assert given.weight_decay == pytest.approx(OMEGA / (1e-3 * given.steps))
    stronger = plan("enoki", "adamw", 6, tokens_per_param=320, omega=8.0)
    assert stronger.weight_decay == pytest.approx(8.0 / (stronger.lr * stronger.steps))
    rules = tmp_path / "rules.yaml"
    rules.write_text("learning_rate:\n- {arch: enoki, opt: adamw, global_batch: 32, a: 1.0, b: 0.0, d: -0.5}\n")
    ruled = resolve(TrainConfig(heads=6, opt="adamw", tokens_per_param=320, rules=rules), GPT2).plan
    assert ruled.lr == pytest.approx(ruled.non_emb_params**-0.5)
    assert ruled.weight_decay == pytest.approx(OMEGA / (ruled.lr * ruled.steps))


def test_smaller_batches_first_leave_the_horizon_what_it_is(capsys):
    long = ["plan", "--heads", "3", "--tokens-per-param", "320", "--json"]
    assert main(long) == 0
    whole = capsys.readouterr().out
    assert main([*long, "--batch-ramp", "8:1000"]) == 0
    ramped = capsys.readouterr().out
    assert whole.partition('"lr"')[2].splitlines()[0] == ramped.partition('"lr"')[2].splitlines()[0]


def test_plan_says_that_an_exponent_is_missing_and_can_leave_the_law_out(capsys):
    assert main(["plan", "--heads", "6", "--opt", "lion", "--tokens-per-param", "320"]) == 0
    assert "not corrected for f = 16: no exponent of lion is measured" in capsys.readouterr().out
    assert main(["plan", "--heads", "6", "--opt", "adamw", "--tokens-per-param", "320", "--horizon-law", "none"]) == 0
    shown = capsys.readouterr().out
    assert "peak lr 3.792997e-03 (fitted for adamw on enoki at batch 32)\n" in shown
    assert "0.0047248, times" in shown
