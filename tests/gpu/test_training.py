"""Runs on a device: checkpoints beside training, bitwise resume, the memory check, one rank of each parallel mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from danalab.train import TrainConfig, train
from danalab.train.run.metrics import read_rows
from danalab.train.run.open import open_run
from slow_cases import slow


@pytest.fixture
def config(data: Path, tmp_path: Path) -> Callable[..., TrainConfig]:
    def make(**given: object) -> TrainConfig:
        settings: dict[str, object] = {
            "data": str(data), "d_model": 64, "n_layers": 2, "n_heads": 2, "seq_len": 32, "batch_size": 4,
            "iterations": 12, "lr": 3e-3, "eval_interval": 0, "eval_batches": 1, "log_interval": 1, "ckpt_interval": 4,
            "run_dir": tmp_path / "run", "compile": False,
        }  # fmt: skip
        return TrainConfig(**{**settings, **given})  # type: ignore[arg-type]

    return make


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([p.detach().flatten().cpu() for p in open_run(folder).load_model().model.parameters()])


STOPPED = {
    "adana": {},
    "dana-star-mk4": {"arch": "qwen3"},
    "muon": {},
    "adamw": {"arch": "qwen3next", "n_layers": 4, "full_attention_interval": 4},
    "ademamix": {"arch": "moe"},
    "dana-mk4": {"arch": "resonance"},
}


@pytest.mark.slow
@pytest.mark.parametrize("opt", ["adana", *slow(*(name for name in STOPPED if name != "adana"))])
def test_a_run_that_was_stopped_ends_in_the_same_bits(device, config, tmp_path, opt):
    common = config(device=device.type, deterministic=True, opt=opt, **STOPPED[opt])
    whole = train(dataclasses.replace(common, run_dir=tmp_path / "whole"))
    for _ in range(3):
        parts = train(dataclasses.replace(common, run_dir=tmp_path / "parts", iterations_to_run=5))
    assert open_run(parts).load_model().step == 12
    assert torch.equal(weights(whole), weights(parts))


@pytest.mark.parametrize("dtype", ["float32", *slow("bfloat16")])
@pytest.mark.parametrize("backend", ["ddp", *slow("fsdp", "zero")])
def test_one_rank_of_a_parallel_mode_trains_as_a_process_alone_and_resumes(
    device, config, tmp_path, backend, dtype
):
    common = config(device=device.type, dtype=dtype)
    alone = train(dataclasses.replace(common, run_dir=tmp_path / "alone"))
    for _ in range(2):
        own = dataclasses.replace(
            common, run_dir=tmp_path / "rank", distributed_backend=backend, iterations_to_run=7
        )
        rank = train(own)
    one, other = (read_rows(folder / "metrics.jsonl")[-1]["train/loss"] for folder in (alone, rank))
    assert other == pytest.approx(one, rel=1e-4 if dtype == "float32" else 0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_float16_finds_its_scale_and_trains(config):
    rows = read_rows(train(config(device="cuda", dtype="float16", iterations=30)) / "metrics.jsonl")
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_compiled_run_in_bfloat16_follows_one_in_float32(config, tmp_path):
    losses = {}
    for name, given in {
        "plain": {"dtype": "float32"},
        "compiled": {"dtype": "bfloat16", "compile": True},
    }.items():
        folder = train(config(device="cuda", run_dir=tmp_path / name, **given))
        losses[name] = [row["train/loss"] for row in read_rows(folder / "metrics.jsonl")]
    assert losses["compiled"] == pytest.approx(losses["plain"], rel=0.02)
