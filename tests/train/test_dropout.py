"""A run with dropout resumes bit for bit: the state of the random generators is part of a checkpoint."""

from __future__ import annotations

from danalab.train import train
from danalab.train.run.metrics import read_rows


def losses(folder) -> list[float]:
    return [row["train/loss"] for row in read_rows(folder / "metrics.jsonl") if "train/loss" in row]


def test_a_run_with_dropout_resumes_exactly_and_differs_from_one_without(tiny, tmp_path):
    settings = {"dropout": 0.2, "iterations": 8, "ckpt_interval": 4, "log_interval": 1}
    whole = train(tiny(**settings, run_dir=tmp_path / "whole"))
    train(tiny(**settings, run_dir=tmp_path / "halves", iterations_to_run=4))
    halves = train(tiny(**settings, run_dir=tmp_path / "halves"))
    assert losses(halves) == losses(whole)
    without = train(tiny(**{**settings, "dropout": 0.0}, run_dir=tmp_path / "without"))
    assert losses(without)[0] != losses(whole)[0]
