"""The scaling rules, against numbers measured on the reference and against the built models' own counts."""

from __future__ import annotations

import json
import math
from itertools import product

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.hardware import find, peak_flops
from danalab.models.config import ModelConfig
from danalab.optim import list_optimizers
from danalab.optimizer_facts import FACTS, facts_of
from danalab.scaling import dimensions, learning_rate, parameter_count, plan
from danalab.scaling.learning_rate import decay_factor, largest_decay, lr_law

KNOWN = ("adamw", "adamw-decaying-wd", "adana", "dana-mk4", "dana-star", "dana-star-mk4")


@pytest.fixture(scope="session")
def rules(golden):
    return json.loads((golden / "scaling_rules.json").read_text())


@pytest.mark.parametrize("arch", ["enoki", "qwen3"])
def test_dimensions_and_horizon_match_the_reference_at_every_size(rules, arch):
    for heads, want in rules[arch].items():
        shape = dimensions(arch, int(heads))
        got = (shape.n_heads, shape.n_layers, shape.d_model, shape.head_dim, shape.mlp_dim)
        assert got == tuple(want[k] for k in ("n_head", "n_layer", "n_embd", "head_dim", "mlp_hidden"))
        assert (shape.non_emb_params, shape.total_params) == (want["non_emb_params"], want["total_params"])
        for batch in (32, 512):
            run = plan(arch, "adana", int(heads), global_batch=batch)
            row = want[f"batch{batch}"]
            for name in ("iterations", "warmup_steps", "wd_ts"):
                assert getattr(run, name) == row[name]
            assert run.weight_decay == pytest.approx(row["weight_decay_omega4"], rel=1e-12)


@pytest.mark.parametrize("arch", ["enoki", "qwen3"])
@pytest.mark.parametrize("batch", [32, 512])
def test_learning_rates_match_the_reference_for_every_optimizer_and_kappa(rules, arch, batch):
    checked = 0
    for want in rules[arch].values():
        for opt, value in want["lr"][f"batch{batch}"].items():
            if opt not in KNOWN:
                continue
            by_kappa = value if isinstance(value, dict) else {"default": value}
            for kappa, lr in by_kappa.items():
                k = 0.85 if kappa == "default" else float(kappa)
                assert learning_rate(arch, opt, want["non_emb_params"], k, batch) == pytest.approx(
                    lr, rel=1e-12
                )
                checked += 1
    assert checked > 100


def test_the_first_command_of_the_readme_plans_the_published_numbers():
    run = plan("enoki", "adana", 3).facts()
    assert (run["steps"], run["warmup"], run["total_params"]) == (6165, 123, 20201472)
    assert run["weight_decay"] == pytest.approx(4 / 616, rel=1e-12)
    assert run["lr"] == pytest.approx(4.389153e-3, rel=1e-6)


def test_adamw_couples_its_decay_to_the_learning_rate():
    run = plan("enoki", "adamw", 12)
    assert run.wd_ts is None
    assert run.weight_decay == pytest.approx(0.0759230, rel=1e-5)


def test_explicit_settings_win_over_the_rules():
    run = plan("enoki", "adana", 3, lr=0.5, iterations=100, warmup_steps=7, weight_decay=0.01, wd_ts=33)
    assert (run.lr, run.iterations, run.warmup_steps, run.weight_decay, run.wd_ts) == (0.5, 100, 7, 0.01, 33)
    assert run.lr_source == "given"


def test_global_batch_is_micro_batch_times_ranks_times_accumulation():
    run = plan("enoki", "adana", 3, batch_size=4, acc_steps=2, world_size=8)
    assert (run.global_batch, run.tokens_per_step) == (64, 64 * 2048)


def test_compute_counts_the_model_as_built():
    run = plan("qwen3", "adana", 6)
    d, layers, vocab = run.model.d_model, run.model.n_layers, run.model.vocab_size
    assert run.model.non_emb_params == 12 * d * d * layers
    assert run.model.exact_params == 14 * d * d * layers + layers * (2 * d + 256) + d + 2 * vocab * d
    weights = 14 * d * d * layers + vocab * d
    assert run.flops_per_token == 6 * weights + 12 * layers * d * 2048


def test_grouped_queries_and_gates_enter_the_count():
    base = {"arch": "qwen3", "d_model": 64, "n_layers": 1, "n_heads": 4, "head_dim": 16, "mlp_dim": 96}
    full = parameter_count(ModelConfig(**base, vocab_size=10, seq_len=8))
    assert (
        full - parameter_count(ModelConfig(**base, vocab_size=10, seq_len=8, attention_gate=False)) == 64 * 64
    )
    assert full - parameter_count(ModelConfig(**base, vocab_size=10, seq_len=8, n_kv_heads=2)) == 2 * 64 * 32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dimensions("enoki", 1), "enoki no layer; take more heads"),
        (lambda: dimensions("enokki", 3), "did you mean 'enoki'"),
        (lambda: plan("enoki", "adanna", 3), "did you mean 'adana'"),
        (
            lambda: dimensions("qwen3", 6, n_kv_heads=4),
            "--n-kv-heads 4 does not divide the 6 heads",
        ),
        (lambda: plan("enoki", "adana"), "give a size: --heads 4"),
        (lambda: plan("enoki", "adana", 3, iterations=10, warmup_steps=10), "must lie in 0..9"),
        (lambda: plan("enoki", "adana", 3, horizon_basis="all"), "must be 'total' or 'non-emb'"),
        (lambda: plan("enoki", "adana", 2, tokens_per_param=1e-4), "less than one step"),
        (lambda: plan("enoki", "adamw", 3, wd_ts=5), "use adamw-decaying-wd"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace("?", r"\?")):
        call()


def test_a_tied_head_is_counted_once_and_learned_positions_with_the_context():
    tied, apart = plan("gpt", "adana", 6, seq_len=256), plan("gpt", "adana", 6, seq_len=256, tied_head=False)
    assert apart.model.exact_params - tied.model.exact_params == 50304 * 384
    assert apart.model.total_params - tied.model.total_params == 50304 * 384
    assert apart.flops_per_token == tied.flops_per_token
    assert (
        plan("gpt", "adana", 6, seq_len=512, iterations=9).model.exact_params - tied.model.exact_params
        == 256 * 384
    )
    assert "used for gpt" in tied.lr_source


def test_size_laws_count_what_the_learning_rates_were_fitted_on():
    assert plan("gpt", "adana", 6).model.non_emb_params == 12 * 384**2 * 6
    assert plan("llama", "adana", 6).model.non_emb_params == 6 * (4 * 768**2 + 3 * 768 * 2048)
    assert plan("llama", "adana", 6, n_kv_heads=2).model.non_emb_params == 6 * (
        4 * 768**2 - 2 * 768 * 512 + 3 * 768 * 2048
    )


def test_short_runs_have_a_decay_time_scale():
    assert plan("enoki", "adana", 2, iterations=5).wd_ts == 1


@pytest.mark.parametrize("arch", ["enoki", "qwen3", "gpt", "llama"])
def test_every_optimizer_has_a_learning_rate_and_a_decay_rule(arch):
    for opt in list_optimizers():
        planned = plan(arch, opt, 6)
        assert 0 < planned.lr <= 3
        share = planned.weight_decay * planned.lr * decay_factor(arch, opt, planned.model.non_emb_params)
        assert 0 < share < 0.05
        assert planned.lr_source


def test_an_optimizer_at_an_address_shows_its_own_rate_and_decay():
    law, source = lr_law("enoki", "torch.optim:Adagrad")
    assert law(1e8) == 1e-2
    assert source.endswith("not fitted (its own default)")
    assert facts_of("torch.optim:Adagrad").decay == "coupled"
    assert facts_of("danalab.optim:ADana").decay == "independent"
    assert largest_decay("danalab.optim:ADana") == 2


def test_facts_are_of_the_optimizers_that_there_are():
    assert list(FACTS) == list_optimizers()


def test_an_architecture_without_a_table_takes_enokis_and_says_so():
    law, source = lr_law("some-other", "lion")
    assert law(1e8) == lr_law("enoki", "lion")[0](1e8)
    assert law.batch == 32
    assert "used for some-other" in source
    assert "arXiv 2302.06675" in source


@pytest.mark.parametrize("opt", ["d-muon", "manau", "dana-muon"])
def test_d_muons_law_is_enokis_where_the_architectures_table_has_none(opt):
    law, source = lr_law("qwen3", opt)
    factor = FACTS[opt].rate.factor if opt != "d-muon" else 1.0
    assert law(1e7) == pytest.approx(factor * 2.19 * (5.64e4 + 1e7) ** -0.417)
    assert "fitted for d-muon on enoki at batch 32, used for qwen3" in source


def test_the_automatic_decay_takes_omega_over_steps_of_a_weight_whatever_the_optimizer():
    for opt in ("adamw", "lion", "sgd", "prodigy", "muon"):
        planned = plan("enoki", opt, 6)
        taken = planned.weight_decay * planned.lr * decay_factor("enoki", opt, planned.model.non_emb_params)
        assert math.isclose(taken * planned.iterations, 4.0)


def test_manau_decays_over_the_whole_run_in_proportion_to_the_learning_rate():
    planned = plan("enoki", "manau", 6)
    assert planned.wd_ts == planned.iterations
    assert math.isclose(planned.weight_decay, 4 / (planned.lr * planned.iterations))
    assert plan("enoki", "manau", 6, wd_ts=7).wd_ts == 7


def test_an_l40s_is_not_an_l4():
    gpu = find("NVIDIA L40S")
    assert gpu is not None
    assert gpu.name == "L40S"
    assert peak_flops("a toaster") is None
    assert math.isclose(peak_flops("NVIDIA H100 80GB HBM3")[0], 989.4e12)


def test_the_rate_has_no_jump_in_the_batch_and_turns_at_a_fitted_batch_alone():
    batches = sorted({*(round(2 ** (k / 4)) for k in range(52)), 31, 33, 511, 513})
    spans = np.diff(np.log(batches))
    opts = ("adana", "adamw", "dana-star-mk4", "dana-muon", "lion")
    for arch, opt, heads in product(("enoki", "qwen3"), opts, (4, 16)):
        planned = [plan(arch, opt, heads, global_batch=b, iterations=100).lr for b in batches]
        lawful = [learning_rate(arch, opt, 12e4 * heads**3, global_batch=b) for b in batches]
        for rates in (planned, lawful):
            slopes = np.diff(np.log(rates)) / spans
            assert np.abs(slopes).max() < 0.8, (
                arch,
                opt,
                heads,
            )  # a jump at 512 would be a slope of hundreds
            assert len({round(slope, 6) for slope in slopes}) <= 3, (
                arch,
                opt,
                heads,
            )  # to 32, to 512, beyond
