"""Sections of a configuration: types, ranges and kinds of settings."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from danalab.errors import UserError
from danalab.train.config.execution import ParallelSettings
from danalab.train.config.fields import field_types, names_of
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from train.config.test_config import Words


def test_every_setting_belongs_to_one_kind():
    kinds = [names_of(TrainConfig, kind) for kind in ("run", "input", "data", "execution", "job")]
    assert sum(map(len, kinds)) == len(fields(TrainConfig)) == len(frozenset().union(*kinds))


def test_a_section_stands_alone():
    assert ParallelSettings(distributed_backend="nccl").distributed_backend == "ddp"
    with pytest.raises(UserError, match="--tp-size 2: only with --distributed-backend fsdp"):
        ParallelSettings(tp_size=2)


def test_text_and_whole_floats_become_numbers():
    config = TrainConfig(
        dtype="bf16", iterations="1e3", lr="1e-3", heads=4.0, compile="false", mlp_only_layers=["1"], data=Path("x")
    )  # type: ignore[arg-type]
    assert (config.iterations, config.lr, config.heads, config.compile) == (1000, 1e-3, 4, False)
    assert config.dtype == "bfloat16"
    assert (config.mlp_only_layers, config.data) == ((1,), "x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"iterations": 1.5}, "--iterations 1.5: must be a whole number"),
        ({"iterations": True}, "--iterations True: must be a number"),
        ({"heads": "many"}, "--heads many: must be a whole number"),
        ({"heads": 0}, "--heads 0: must be at least 1"),
        ({"d_model": 10**400}, "must be below 2\\^64"),
        ({"lr": 0.0}, "--lr 0.0: must be more than 0"),
        ({"lr": float("nan")}, "--lr nan: must be finite"),
        ({"lr": "inf"}, "--lr inf: must be finite"),
        ({"nproc": 1_000_000}, "--nproc 1000000: must be at most 1024"),
        ({"dtype": "int8"}, "--dtype int8: must be 'float32', 'bfloat16' or 'float16'"),
        ({"run_dir": "a\0b"}, "must not contain a null character"),
        ({"keep_steps": ("x",)}, "--keep-steps x: STEP or STEP=NAME"),
        ({"optimizer_settings": 3}, "must be a mapping"),
    ],
)
def test_a_bad_value_is_named_with_its_flag(given, message):
    with pytest.raises(UserError, match=message) as caught:
        TrainConfig(**given)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


_ODD = {
    "arch": "llama", "opt": "adamw", "scheduler": "cos", "seq_len": 64, "warmup_steps": 3, "global_batch": 8,
    "iterations": 50, "lr": 0.0012345, "seq_len_ramp": "32:9", "batch_ramp": "8:9", "packing": "documents",
    "dtype": "bfloat16", "vocab_size": 50400, "init": "standard", "kappa": 0.8, "optimizer_settings": {"eps": 1e-6},
    "wd_ts": 90.0, "seed": 4, "data_seed": 5, "attention_gate": True, "n_kv_heads": 2, "z_loss": 0.0, "hoyer_loss": 0.1,
    "document_mask": True, "weight_decay": 0.01, "delta": 6.0, "omega": 3.0, "wd_ts_divisor": 8.0, "grad_clip": 1.0,
    "decay_bound": 1.0, "beta1": 0.8, "tied_head": True, "cos_inf_steps": 5, "div_factor": 50.0,
    "final_div_factor": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(_ODD))
def test_runs_that_differ_in_a_setting_have_different_default_folders(name):
    base = TrainConfig(heads=4, iterations=1000, opt="adana" if name != "beta1" else "adamw")
    other = replace(base, **{name: _ODD[name]})
    assert resolve(base, Words()).execution.run_dir != resolve(other, Words()).execution.run_dir


def test_default_names_of_plain_runs_are_those_of_version_0_1():
    name = resolve(TrainConfig(heads=4, iterations=1000), Words()).execution.run_dir.name
    assert name == "enoki-adana-h4-words-b32x2048-i1000-lr0.00251-s0"
    assert (
        "-cos-k0.8"
        in resolve(TrainConfig(heads=4, iterations=9, scheduler="cos", kappa=0.8), Words()).execution.run_dir.name
    )


def test_annotations_are_types_that_flags_can_have():
    assert set(field_types(TrainConfig)) == {field.name for field in fields(TrainConfig)}
