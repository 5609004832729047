"""Settings: what is automatic, what wins, what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.optim import build_optimizer
from danalab.scaling import plan
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig


@dataclass
class Words:
    vocab_size: int = 50304
    least_vocab_size: int = 50304
    sequence_length: int | None = None
    name: str = "words"
    eos_id: int | None = 50256


def test_heads_alone_follow_the_scaling_rules():
    resolved = resolve(TrainConfig(heads=4), Words())
    rules = plan("enoki", "adana", 4)
    config = resolved.config
    assert (config.iterations, config.lr, config.weight_decay) == (rules.steps, rules.lr, rules.weight_decay)
    assert (config.wd_ts, config.warmup_steps, config.d_model) == (rules.wd_ts, rules.warmup, 256)


def test_explicit_settings_win_over_the_rules():
    given = {"lr": 0.5, "iterations": 700, "warmup_steps": 3, "weight_decay": 0.01, "wd_ts": 5.0}
    config = resolve(TrainConfig(heads=4, **given), Words()).config
    assert {name: getattr(config, name) for name in given} == given


def test_lr_multiplier_scales_the_law_and_not_an_explicit_lr():
    law = resolve(TrainConfig(heads=4), Words()).lr
    assert resolve(TrainConfig(heads=4, lr_multiplier=2.0), Words()).lr == 2 * law
    assert resolve(TrainConfig(heads=4, lr_multiplier=2.0, lr=0.1), Words()).lr == 0.1


def test_runs_of_two_mixers_have_two_names():
    shapes = [{}, {"mixer": "oscillators"}, {"mixer": "none"}]
    runs = [resolve(TrainConfig(arch="resonance", opt="adamw", size="small", **shape), Words()) for shape in shapes]
    names = [run.run_dir.name for run in runs]
    assert len(set(names)) == 3
    assert "-nomixer-" in names[2]


@pytest.mark.parametrize(
    ("given", "world", "expected"),
    [
        ({}, 1, (32, 1, 32)),
        ({"batch_size": 8, "acc_steps": 2}, 2, (8, 2, 32)),
        ({"global_batch": 64, "batch_size": 8}, 2, (8, 4, 64)),
        ({"global_batch": 48}, 1, (24, 2, 48)),
        ({"global_batch": 6, "acc_steps": 3}, 1, (2, 3, 6)),
        ({"global_batch": 7}, 1, (7, 1, 7)),
    ],
)
def test_global_batch_is_batch_times_ranks_times_accumulation(given, world, expected):
    config = resolve(TrainConfig(heads=4, **given), Words(), world).config
    assert (config.batch_size, config.acc_steps, config.global_batch) == expected


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"heads": 4, "global_batch": 10, "batch_size": 4}, "not divisible"),
        ({"heads": 4, "global_batch": 16, "batch_size": 4, "acc_steps": 2}, "--acc-steps 2"),
        ({"heads": 4, "iterations": 10, "warmup_steps": 10}, "warm"),
        ({"heads": 4, "weight_decay": 100.0, "wd_ts": 1.0}, "first step"),
        ({"heads": 4, "d_model": 64}, "--heads 4 decides"),
        ({}, "give a size: --heads 4, or --d-model"),
        ({"d_model": 64}, "--n-layers"),
        ({"heads": 4, "vocab_size": 100}, "50304"),
        ({"heads": 4, "scheduler": "cosine-wave"}, "schedule"),
        ({"heads": 4, "scheduler": "wsd", "power": 2.0}, "power"),
        ({"heads": 4, "opt": "adanna"}, "adana"),
        ({"heads": 4, "iterations": 100, "extend_to": 50}, "--extend-to"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(given, word):
    with pytest.raises(UserError, match=word):
        resolve(TrainConfig(**given), Words())


@pytest.mark.parametrize("given", [{"heads": 4}, {"d_model": 128, "n_layers": 2, "n_heads": 2, "opt": "adamw"}])
def test_what_was_resolved_resolves_to_itself(given):
    once = resolve(TrainConfig(**given), Words()).config
    assert resolve(TrainConfig(**once.as_dict()), Words()).config == once


@pytest.mark.parametrize(
    "given", [{"keep_last": 1}, {"lr": 0.0}, {"batch_size": 0}, {"lr": float("nan")}, {"seed": 2**64}]
)
def test_settings_out_of_range_are_refused_at_once(given):
    with pytest.raises(UserError):
        TrainConfig(heads=4, **given)


def test_automatic_weight_decay_never_flips_a_weight_in_a_short_run():
    resolved = resolve(TrainConfig(heads=4, iterations=5, decay_bound=0), Words())
    assert resolved.weight_decay / (1 + 1 / resolved.wd_ts) == pytest.approx(0.5)
    assert "weight decay" in resolved.notes[0]


def settings_of(**given) -> dict:
    return dict(resolve(TrainConfig(heads=4, iterations=60, lr=1e-3, **given), Words()).optimizer_settings)


@pytest.mark.parametrize(
    ("opt", "bound"),
    [("adana", 2), ("dana-star-mk4", 2), ("snoo-dana", 2), ("sign-dana", 2), ("adamw-decaying-wd", 1)],
)
def test_automatic_weight_decay_is_bounded_by_the_learning_rate(opt, bound):
    assert settings_of(opt=opt)["decay_bound"] == bound
    assert settings_of(opt=opt, decay_bound=0.5)["decay_bound"] == 0.5
    assert settings_of(opt=opt, weight_decay=0.01)["decay_bound"] == 0


@pytest.mark.parametrize("opt", ["adamw", "muon", "ademamix", "manau", "lion"])
def test_coupled_weight_decay_is_bounded_too(opt):
    assert settings_of(opt=opt)["weight_decay"] == 1
    assert settings_of(opt=opt, decay_bound=0.5)["weight_decay"] == 0.5
    assert settings_of(opt=opt, decay_bound=0)["weight_decay"] == pytest.approx(4 / (1e-3 * 60))
    assert settings_of(opt=opt, weight_decay=3.0)["weight_decay"] == 3


@pytest.mark.parametrize("opt", ["adana", "adamw", "muon"])
def test_train_and_build_optimizer_decay_alike(opt):
    model = torch.nn.Linear(3, 3)
    by_train = build_optimizer(opt, model, lr=1e-3, **settings_of(opt=opt)).param_groups[0]
    alone = build_optimizer(opt, model, lr=1e-3, omega=4.0, horizon=60).param_groups[0]
    for key in ("weight_decay", "wd_ts", "decay_bound"):
        assert by_train.get(key) == alone.get(key)


def test_settings_that_an_optimizer_lacks_are_refused():
    with pytest.raises(UserError, match="clipsnr"):
        _ = resolve(TrainConfig(heads=4, opt="adana", clipsnr=2.0), Words()).optimizer_settings


def test_a_spec_says_device_number_format_compiler_and_backend():
    cpu, gpu = (resolve(TrainConfig(heads=4), Words(), device_type=kind) for kind in ("cpu", "cuda"))
    own = cpu.execution
    assert (own.dtype, own.compile, own.backend) == ("float32", False, "single")
    assert (gpu.dtype, gpu.compile) == ("bfloat16", True), "the names of version 0.2"
    assert resolve(TrainConfig(heads=4), Words(), world_size=2).backend == "ddp"
    assert gpu.as_dict()["execution"]["dtype"] == "bfloat16"
    assert gpu.as_dict()["optimizer"]["wd_ts"] == gpu.optimizer_settings["wd_ts"] == gpu.wd_ts


def test_flags_of_a_tracker_that_is_off_are_told_of():
    given = {"heads": 4, "wandb_mode": "offline", "wandb_group": "sizes"}
    told = "--wandb-group, --wandb-mode without --wandb"
    assert told in " ".join(resolve(TrainConfig(**given), Words()).notes)
    assert told not in " ".join(resolve(TrainConfig(**given, wandb=True), Words()).notes)


def test_configuration_needs_no_torch():
    code = (
        "import sys, danalab.train.config.train_config, danalab.train.config.resolve; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_length_is_that_of_arrays_where_the_data_are_sequences():
    assert resolve(TrainConfig(heads=4, iterations=9), Words(sequence_length=33)).seq_len == 32
    assert resolve(TrainConfig(heads=4, iterations=9), Words()).seq_len == 2048
    assert resolve(TrainConfig(heads=4, iterations=9, seq_len=16), Words(sequence_length=33)).seq_len == 16


def test_a_ramp_of_batches_takes_more_steps_for_as_many_tokens():
    constant = resolve(TrainConfig(heads=4, global_batch=32), Words())
    ramped = resolve(TrainConfig(heads=4, global_batch=32, batch_ramp="8:1000,16:3000"), Words())
    assert ramped.iterations > constant.iterations
    assert ramped.iterations == ramped.plan.steps
    assert constant.plan.tokens - 32 * 2048 < ramped.plan.tokens <= constant.plan.tokens
    assert ramped.batches.tokens(ramped.iterations) == ramped.plan.tokens
    assert ramped.warmup_steps == ramped.iterations // 50


def test_a_ramp_of_lengths_costs_fewer_flops_for_the_same_tokens():
    constant = resolve(TrainConfig(heads=4, iterations=100), Words())
    ramped = resolve(TrainConfig(heads=4, iterations=100, seq_len_ramp="256:50"), Words())
    assert ramped.plan.tokens == constant.plan.tokens
    assert constant.flops(100) == constant.plan.flops
    assert ramped.flops(100) == ramped.plan.flops < constant.plan.flops
    assert ramped.flops(100) - ramped.flops(50) == constant.flops(50)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"seq_len_ramp": "300:10"}, "300 does not divide --seq-len 2048"),
        ({"batch_ramp": "64:10"}, "64 is not between 1 and the full value, 32"),
        ({"batch_ramp": "8"}, "--batch-ramp is 8"),
    ],
)
def test_ramps_that_do_not_fit_are_refused(settings, reason):
    with pytest.raises(UserError, match=reason):
        resolve(TrainConfig(heads=4, **settings), Words())


def test_a_document_mask_needs_to_know_where_documents_end():
    with pytest.raises(UserError, match="--document-mask: the id that ends"):
        resolve(TrainConfig(heads=4, document_mask=True), Words(eos_id=None))


def test_diloco_is_an_old_name_of_enoki_and_said_to_be():
    old, new = (resolve(TrainConfig(arch=arch, heads=3), Words()) for arch in ("diloco", "enoki"))
    assert (old.config.arch, old.plan) == ("enoki", new.plan)
    assert any("old name of enoki" in note for note in old.notes)
    assert not any("old name" in note for note in new.notes)


@pytest.mark.parametrize(("steps", "warmup"), [(5, 0), (10, 1), (20, 2), (49, 4), (199, 4), (250, 5), (6165, 123)])
def test_short_runs_have_a_warm_up_too(steps, warmup):
    assert resolve(TrainConfig(heads=4, iterations=steps), Words()).warmup_steps == warmup


@pytest.mark.parametrize(
    ("steps", "batch", "given", "sets"),
    [
        (200, 8, {}, (4, 50)),  # 10 evaluations of 1,600 sequences' worth: a quarter of training is 3.75 batches
        (1000, 32, {}, (64, 1000)),
        (100_000, 32, {}, (64, 100_000)),
        (2000, 8, {}, (37, 500)),
        (200, 8, {"eval_interval": 0}, (37, 50)),
        (200, 8, {"eval_batches": 64}, (64, 64)),
        (200, 8, {"eval_batches": 0}, (0, 0)),
        (200, 8, {"final_eval_batches": 0}, (4, 0)),
    ],
)
def test_evaluation_takes_a_share_of_the_time_of_training(steps, batch, given, sets):
    config = resolve(TrainConfig(heads=2, iterations=steps, global_batch=batch, **given), Words()).config
    assert (config.eval_batches, config.final_eval_batches) == sets


def test_what_is_wrong_with_the_settings_shows_before_data_are_prepared(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path / "datasets"))
    monkeypatch.setattr("danalab.data.open.resolve_dataset", lambda *_: pytest.fail("data were prepared"))
    for more in ([], ["--nproc", "2"]):
        assert main(["train", "--heads", "1", "--run-dir", str(tmp_path / "run"), *more]) == 2
        assert "--heads 1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
