"""Learning rates of small models and small batches, where the published laws are too high."""

import json
from pathlib import Path

import pytest

from danalab.files import read_text
from danalab.scaling import plan
from danalab.scaling.dimensions import explicit_dimensions
from danalab.scaling.learning_rate import FITTED_TOKENS, learning_rate, small_run_rate

LADDER = Path(__file__).parents[2] / "bench" / "results" / "ladder_cpu_v1" / "ladder.jsonl.gz"


def rate(arch, opt, params, tokens):
    return small_run_rate(arch, opt, params, 0.85, tokens).lr


@pytest.mark.parametrize("opt", ["adamw", "adana", "dana-star-mk4", "ademamix", "lion"])
def test_the_published_batch_has_the_published_rate(opt):
    assert rate("enoki", opt, 1e7, FITTED_TOKENS) == learning_rate("enoki", opt, 1e7)


@pytest.mark.parametrize("opt", ["adamw", "adana", "lion"])
def test_an_eighth_of_the_batch_has_half_of_the_rate(opt):
    found = small_run_rate("enoki", opt, 1e7, 0.85, FITTED_TOKENS // 8)
    assert found.lr == pytest.approx(learning_rate("enoki", opt, 1e7) / 2)
    assert (found.law_batch, found.batch_factor) == (32, pytest.approx(0.5))
    assert found.source.endswith("times 0.50 for 8,192 tokens a step")


@pytest.mark.parametrize(("arch", "opt"), [("enoki", "muon"), ("enoki", "dana-star-mk4"), ("qwen3", "adana")])
def test_rates_that_were_right_in_small_runs_are_left_alone(arch, opt):
    assert rate(arch, opt, 1e5, 1024) == learning_rate(arch, opt, 1e5)


@pytest.mark.parametrize("opt", ["adamw", "soap", "adamw-decaying-wd"])
def test_adamw_on_qwen3_is_held_below_the_published_sizes(opt):
    assert rate("qwen3", opt, 786_432, 2048) == rate("qwen3", opt, 25_165_824, 2048) < 0.01
    assert rate("qwen3", opt, 5e7, 2048) == learning_rate("qwen3", opt, 5e7)


def test_the_best_rate_of_the_small_ladder_is_within_a_factor_of_two():
    rows = [json.loads(line) for line in read_text(LADDER).splitlines()]
    for opt in ("adamw", "adana", "dana-star-mk4"):
        for params in (24_576, 55_296, 98_304):
            trials = [row for row in rows if (row["opt"], row["non_emb_params"], row["seed"]) == (opt, params, 0)]
            best = min(trials, key=lambda row: row["final_loss"])["lr"]
            assert 0.45 < rate("enoki", opt, params, 1024) / best < 2.1, (opt, params)


def test_a_plan_takes_it():
    dims = explicit_dimensions("enoki", 128, 4, 4)
    assert plan("enoki", "adamw", dims=dims, seq_len=128, batch_size=16, iterations=100).lr < 0.005
    assert plan("enoki", "adamw", dims=dims, seq_len=2048, batch_size=32, iterations=100).lr > 0.01
