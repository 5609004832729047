"""Settings: what is automatic, what wins, what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.optim import settings_of as known_settings
from danalab.optimizer_facts import FACTS, rates_to_try
from danalab.scaling import learning_rate, plan
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from danalab.train.pretraining import evaluation_windows
from danalab.train.trainer import OptimizerDriver


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
    config = resolved
    assert (config.iterations, config.lr, config.weight_decay) == (
        rules.iterations,
        rules.lr,
        rules.weight_decay,
    )
    assert (config.wd_ts, config.warmup_steps, config.d_model) == (rules.wd_ts, rules.warmup_steps, 256)


@pytest.mark.parametrize("spelling", ["cos_inf", "cos-inf", "COS_INF"])
def test_an_extension_lengthens_the_tail_however_the_schedule_is_spelled(spelling):
    given = TrainConfig(heads=4, iterations=100, extend_to=150, warmup_steps=2, scheduler=spelling)
    factor = resolve(given, Words()).schedule()
    assert factor(149) == factor(100) < factor(98)


def test_explicit_settings_win_over_the_rules():
    given = {"lr": 0.5, "iterations": 700, "warmup_steps": 3, "weight_decay": 0.01, "wd_ts": 5.0}
    config = resolve(TrainConfig(heads=4, **given), Words())
    assert {name: getattr(config, name) for name in given} == given


def test_lr_multiplier_scales_the_default_rate_and_not_an_explicit_lr():
    law = resolve(TrainConfig(heads=4), Words()).lr
    assert resolve(TrainConfig(heads=4, lr_multiplier=2.0), Words()).lr == 2 * law
    assert resolve(TrainConfig(heads=4, lr_multiplier=2.0, lr=0.1), Words()).lr == 0.1


def test_runs_of_two_mixers_have_two_names():
    shapes = [{}, {"mixer": "oscillators"}, {"mixer": "none"}]
    runs = [
        resolve(TrainConfig(arch="resonance", opt="adamw", size="small", **shape), Words())
        for shape in shapes
    ]
    names = [run.run_dir.name for run in runs]
    assert len(set(names)) == 3


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
    config = resolve(TrainConfig(heads=4, **given), Words(), world)
    assert (config.batch_size, config.acc_steps, config.global_batch) == expected


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"heads": 4, "global_batch": 10, "batch_size": 4}, "--global-batch 10 is not --batch-size 4"),
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


@pytest.mark.parametrize(
    "given", [{"heads": 4}, {"d_model": 128, "n_layers": 2, "n_heads": 2, "opt": "adamw"}]
)
def test_what_was_resolved_resolves_to_itself(given):
    once = resolve(TrainConfig(**given), Words())
    assert resolve(TrainConfig(**once.as_dict()), Words()).as_dict() == once.as_dict()


@pytest.mark.parametrize(
    "given", [{"keep_last": 1}, {"lr": 0.0}, {"batch_size": 0}, {"lr": float("nan")}, {"seed": 2**64}]
)
def test_settings_out_of_range_are_refused_at_once(given):
    with pytest.raises(UserError):
        TrainConfig(heads=4, **given)


def settings_of(**given) -> dict:
    config = resolve(TrainConfig(heads=4, iterations=60, lr=1e-3, **given), Words())
    return config.settings_of_optimizer(known_settings(config.opt))


@pytest.mark.parametrize("opt", ["adamw", "muon", "ademamix", "manau", "lion"])
def test_coupled_weight_decay_is_bounded_too(opt):
    assert settings_of(opt=opt)["weight_decay"] == 1
    assert settings_of(opt=opt, decay_bound=0.5)["weight_decay"] == 0.5
    assert settings_of(opt=opt, decay_bound=0)["weight_decay"] == pytest.approx(4 / (1e-3 * 60))
    assert settings_of(opt=opt, weight_decay=3.0)["weight_decay"] == 3


def test_settings_that_an_optimizer_lacks_are_refused():
    with pytest.raises(UserError, match="clipsnr"):
        settings_of(opt="adana", clipsnr=2.0)


def test_an_automatic_independent_decay_is_given_by_omega_and_so_bounded():
    assert settings_of(opt="adana") == {"kappa": 0.85, "delta": 8.0, "wd_ts": 6.0, "omega": 4.0}
    assert settings_of(opt="adana", weight_decay=0.01)["weight_decay"] == 0.01
    assert "omega" not in settings_of(opt="adana", decay_bound=0)


@pytest.mark.parametrize("opt", ["adana", "dana-star", "adamw-decaying-wd", "snoo-dana"])
def test_a_bound_of_an_independent_decay_acts(opt):
    def after_step(bound):
        config = resolve(TrainConfig(heads=4, iterations=60, lr=1e-3, opt=opt, decay_bound=bound), Words())
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        driver = OptimizerDriver.build(config, model)
        model(torch.zeros(4)).sum().backward()
        driver.set_rate(1)
        driver.optimizer.step()
        return model.weight.detach()

    torch.manual_seed(0)
    weight = torch.nn.Linear(4, 4).weight.detach()
    torch.testing.assert_close(after_step(100.0) - after_step(20.0), -0.08 * weight)


def test_a_run_has_a_number_format_a_compiler_and_a_backend():
    cpu, gpu = (resolve(TrainConfig(heads=4), Words(), device_type=kind) for kind in ("cpu", "cuda"))
    assert (cpu.dtype, cpu.compile, cpu.distributed_backend) == ("float32", False, "single")
    assert (gpu.dtype, gpu.compile) == ("bfloat16", True)
    assert resolve(TrainConfig(heads=4), Words(), 2).distributed_backend == "ddp"


@pytest.mark.parametrize(
    ("opt", "arch", "factor"),
    [
        ("adana", "enoki", 0.25),
        ("dana-mk4", "enoki", 0.25),
        ("adamw", "enoki", 0.25),
        ("dana-star-mk4", "enoki", 1.0),
        ("adana", "qwen3", 1.0),
    ],
)
def test_the_default_rate_falls_with_the_batch_where_the_law_is_too_high(opt: str, arch: str, factor: float):
    size = {
        "arch": arch,
        "opt": opt,
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 1,
        "iterations": 90,
        "seq_len": 128,
    }
    small = resolve(TrainConfig(**size, batch_size=8), Words())  # 1,024 tokens a step
    law = learning_rate(arch, opt, small.model.non_emb_params, global_batch=1024 / 2048)
    assert small.lr == pytest.approx(factor * law)
    assert ("times 0.25 for 1,024 tokens a step" in small.lr_source) == (factor < 1)
    assert resolve(TrainConfig(**size, batch_size=8, lr_multiplier=2.0), Words()).lr == 2 * small.lr


@pytest.mark.parametrize("opt", FACTS)
def test_the_default_rate_of_a_small_model_is_one_that_is_recommended(opt):
    lowest, _, highest = rates_to_try(opt)
    for width, vocab in ((32, 512), (48, 512), (64, 4096)):  # 58 k, 105 k and 0.6 M parameters
        given = TrainConfig(
            opt=opt, d_model=width, n_layers=2, n_heads=1, seq_len=128, batch_size=8, iterations=500
        )
        run = resolve(given, Words(vocab_size=vocab, least_vocab_size=vocab))
        assert 0.99 * lowest <= run.lr <= 1.01 * highest, (run.model.exact_params, run.lr)


def test_configuration_needs_no_torch():
    code = (
        "import sys; from danalab.train.config import resolve, train_config; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_length_is_that_of_arrays_where_the_data_are_sequences():
    assert resolve(TrainConfig(heads=4, iterations=9), Words(sequence_length=33)).seq_len == 32
    assert resolve(TrainConfig(heads=4, iterations=9), Words()).seq_len == 2048
    assert resolve(TrainConfig(heads=4, iterations=9, seq_len=16), Words(sequence_length=33)).seq_len == 16


def test_a_document_mask_needs_to_know_where_documents_end():
    with pytest.raises(UserError, match="--document-mask: the id that ends"):
        resolve(TrainConfig(heads=4, document_mask=True), Words(eos_id=None))


@pytest.mark.parametrize(
    ("steps", "warmup"), [(5, 0), (10, 1), (20, 2), (49, 4), (199, 4), (250, 5), (6165, 123)]
)
def test_short_runs_have_a_warm_up_too(steps, warmup):
    assert resolve(TrainConfig(heads=4, iterations=steps), Words()).warmup_steps == warmup


@pytest.mark.parametrize(
    ("steps", "batch", "given", "sets"),
    [
        (200, 8, {}, (2, 25)),  # 10 evaluations and the last one of 800 sequences each: the run has 1,600
        (1000, 32, {}, (50, 500)),
        (100_000, 32, {}, (64, 50_000)),
        (2000, 8, {}, (25, 250)),
        (200, 8, {"eval_interval": 0}, (25, 25)),
        (200, 8, {"eval_batches": 64}, (64, 64)),
        (200, 8, {"eval_batches": 0}, (0, 0)),
        (200, 8, {"final_eval_batches": 0}, (2, 0)),
    ],
)
def test_evaluation_takes_a_share_of_the_time_of_training(steps, batch, given, sets):
    config = resolve(TrainConfig(heads=2, iterations=steps, global_batch=batch, **given), Words())
    assert (config.eval_batches, config.final_eval_batches) == sets


@pytest.mark.parametrize("batch", [2, 5, 32])
@pytest.mark.parametrize("steps", [1, 3, 12, 37, 40, 100, 333, 2500])
def test_evaluations_take_a_quarter_of_the_time_at_most(steps, batch):
    config = resolve(TrainConfig(heads=2, iterations=steps, global_batch=batch), Words())
    fixed, final = (evaluation_windows(config, name) for name in ("eval_batches", "final_eval_batches"))
    during = sum(map(config.is_evaluated, range(1, steps + 1)))
    forward = during * fixed + final * (final != fixed)
    assert forward <= (3 * steps * batch + forward) / 4


def test_what_is_wrong_with_the_settings_shows_before_data_are_prepared(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path / "datasets"))
    monkeypatch.setattr("danalab.data.open.resolve_dataset", lambda *_: pytest.fail("data were prepared"))
    for more in ([], ["--nproc", "2"]):
        assert main(["train", "--heads", "1", "--run-dir", str(tmp_path / "run"), *more]) == 2
        assert "--heads 1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
