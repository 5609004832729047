"""Runs that stop amid SNOO's period or AdEMAMix's warmups go on, through a checkpoint on disk, as if they had not."""

from __future__ import annotations

import pytest
import torch

from danalab.train import train
from danalab.train.config.resolve import resolve
from danalab.train.run.open import open_run
from danalab.train.trainer import run_training


def weights(folder):
    return torch.cat([p.detach().flatten() for p in open_run(folder).load_model().model.parameters()])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("opt", "settings"),
    [
        ("snoo", {"k": 4, "lr_outer": 0.7}),
        ("snoo-dana", {"k": 5, "mu": 0.5}),
        pytest.param("ademamix", {}, marks=pytest.mark.slow),
        ("ademamix-decaying-wd", {}),
        ("auto-dana", {"significance": 1.0}),
    ],
)
def test_a_run_that_stops_there_is_bitwise_the_run_in_one(tiny, tmp_path, opt, settings):
    given = {"opt": opt, "optimizer_settings": settings, "n_layers": 1, "iterations": 14, "ckpt_interval": 0}
    whole = train(tiny(**given, run_dir=tmp_path / "whole"))
    parts = tiny(
        **given, run_dir=tmp_path / "parts", iterations_to_run=6
    )  # stops at 6 and 12 of periods of 4 and 5
    assert [run_training(parts).status for _ in range(3)] == ["stopped", "stopped", "finished"]
    assert torch.equal(weights(tmp_path / "parts"), weights(whole))


def test_ademamix_follows_the_ladder_and_runs_of_a_few_steps_have_no_negative_rate(tiny):
    from danalab.data import open_dataset
    from danalab.optim import settings_of

    for steps, slow in ((1000, 1 - 8 / 1000), (8, 0.0), (5, 0.0)):
        config = tiny(opt="ademamix", iterations=steps, warmup_steps=0)
        found = resolve(config, open_dataset(config.data)).settings_of_optimizer(settings_of("ademamix"))
        assert found["betas"] == (0.9, 0.999, slow)
        assert found["alpha"] == pytest.approx(steps**0.15)
        assert found["alpha_warmup"] == found["beta3_warmup"] == steps
