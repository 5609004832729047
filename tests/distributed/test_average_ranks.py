"""Averages of the weights on ranks: the same number, shards that any number of ranks reads, exact resume."""

from __future__ import annotations

import pytest
import torch

from danalab.models import build_model
from danalab.train.checkpoint import tensors
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.run.open import open_run
from danalab.train.step.average import AVERAGE
from danalab.train.trainer import run_training
from distributed.ranks import run_ranks


def train(rank: int, size: int, config: TrainConfig) -> str:
    return run_training(config).status


def averages(run):
    model = build_model(open_run(run).model_config)
    tensors.read(RunFolder(run).store.path(6), model, prefix=AVERAGE)
    losses = [
        row["val/loss_average"] for row in read_rows(run / "metrics.jsonl") if "val/loss_average" in row
    ]
    return losses, model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fsdp", "ddp", "zero"])
def test_an_average_on_two_ranks_is_that_of_one_and_resumes_bitwise(words, tmp_path, backend):
    settings = {
        "data": words, "d_model": 16, "n_layers": 1, "n_heads": 1, "seq_len": 16, "global_batch": 8, "iterations": 6,
        "lr": 1e-3, "eval_interval": 3, "eval_batches": 1, "ckpt_interval": 0, "ema": 0.6,
    }  # fmt: skip
    one, whole, resumed = (tmp_path / name for name in ("one", "whole", "resumed"))
    run_training(TrainConfig(**settings, run_dir=one))
    two = {**settings, "distributed_backend": backend}
    assert run_ranks(train, 2, TrainConfig(**two, run_dir=whole)) == ["finished"] * 2
    assert run_ranks(train, 2, TrainConfig(**two, run_dir=resumed, iterations_to_run=4)) == ["stopped"] * 2
    assert run_ranks(train, 2, TrainConfig(**two, run_dir=resumed)) == ["finished"] * 2
    (losses, weights), (again, same), (alone, close) = map(averages, (whole, resumed, one))
    assert losses == again
    assert losses == pytest.approx(alone, rel=1e-5)
    assert len(losses) == 2
    for name, value in weights.items():
        assert torch.equal(value, same[name]), name
        torch.testing.assert_close(value, close[name], rtol=1e-4, atol=1e-6)
