"""A resonance model under the trainer: it resumes, accumulates and is evaluated as every other."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
import torch

from danalab.cli.app import main
from danalab.models import ModelConfig, build_model
from danalab.train import train
from danalab.train.run.open import open_run
from danalab.train.step.gradients import GradientStep
from danalab.train.step.loss import CrossEntropy, TrainingBatch
from danalab.train.trainer import run_training

RESONANCE = {"arch": "resonance", "n_heads": 4, "num_frequencies": 8, "opt": "adamw"}


def weights(folder):
    model = open_run(folder).load_model().model
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.slow
def test_a_run_in_parts_is_bitwise_the_run_in_one(tiny, tmp_path):
    whole = train(tiny(**RESONANCE, run_dir=tmp_path / "whole", iterations=8))
    parts = tiny(**RESONANCE, run_dir=tmp_path / "parts", iterations=8, iterations_to_run=3)
    assert [run_training(parts).status for _ in range(3)] == ["stopped", "stopped", "finished"]
    assert torch.equal(weights(tmp_path / "parts"), weights(whole))


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_accumulation_changes_no_gradient_in_float64(micro_batch):
    def gradients(size: int) -> torch.Tensor:
        model = build_model(ModelConfig("resonance", 32, 2, 4, 8, 64, 64, 16), dtype=torch.float64)
        tokens = torch.randint(0, 64, (6, 17), generator=torch.Generator().manual_seed(1))
        targets = tokens[:, 1:].clone()
        targets[0, 3:] = -1
        parameters = list(model.parameters())
        step = GradientStep(
            model,
            parameters,
            micro_batch=size,
            grad_clip=0.0,
            loss=CrossEntropy(),
            autocast=contextlib.nullcontext,
        )
        step(TrainingBatch(tokens[:, :-1], targets))
        return torch.cat([p.grad.flatten() for p in parameters])

    assert (gradients(micro_batch) - gradients(6)).abs().max() <= 1e-10


def test_a_resumed_run_does_not_change_its_mixer(tiny, tmp_path):
    train(tiny(**RESONANCE, iterations=2))
    given = {key: value for key, value in RESONANCE.items() if key != "num_frequencies"}
    with pytest.raises(ValueError, match=r"mixer|num_frequencies"):
        train(tiny(**given, mixer="none", iterations=2, extend_to=4))


def test_a_run_on_bare_token_ids_generates_with_the_tokenizer_that_is_named(capsys, tmp_path):
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        (tmp_path / "data" / split).mkdir(parents=True)
        np.save(tmp_path / "data" / split / "ids.npy", draw.integers(0, 256, (20, 17)).astype(np.uint16))
    where = ["--data", str(tmp_path / "data"), "--run-dir", str(tmp_path / "run")]
    shape = [
        "--arch",
        "resonance",
        "--model-dim",
        "16",
        "--num-layers",
        "1",
        "--batch-size",
        "2",
        "--eval-batches",
        "1",
    ]
    assert main(["train", *shape, *where, "--iterations", "1"]) == 0
    capsys.readouterr()
    ask = ["generate", "--run", str(tmp_path / "run"), "--prompt", "abc", "--max-tokens", "5", "--json"]
    assert main(ask) == 2
    assert "--tokenizer gpt2, or a path" in capsys.readouterr().err
    assert main([*ask, "--tokenizer", "bytes"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"][0]["tokens"] <= 5
