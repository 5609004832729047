"""A run keeps the number format that it began with, on any device."""

from __future__ import annotations

import json

import pytest

from danalab.data import open_dataset
from danalab.train import train
from danalab.train.config.resolve import resolve
from danalab.train.config.run_spec import recorded_dtype
from danalab.train.run.folder import RunFolder
from danalab.train.run.resume import choose_resume_point


def test_a_run_that_moves_from_cpu_to_gpu_stays_in_float32(tiny):
    config = tiny(iterations=2)
    folder = RunFolder(train(config))
    dataset = open_dataset(config.data)
    assert json.loads(folder.config_file.read_text())["config"]["dtype"] == "float32"
    moved = resolve(config, dataset, device_type="cuda")
    assert moved.dtype == "bfloat16"
    assert choose_resume_point(moved, dataset, folder)[0].dtype == "float32"


def test_another_number_format_is_another_run(tiny):
    folder = RunFolder(train(tiny(iterations=2)))
    config = tiny(iterations=2, dtype="bfloat16")
    dataset = open_dataset(config.data)
    with pytest.raises(ValueError, match="--dtype bfloat16 here, float32 there"):
        choose_resume_point(resolve(config, dataset), dataset, folder)


def test_runs_of_version_0_1_tell_their_number_format_by_their_device():
    assert recorded_dtype({"config": {"dtype": None}, "device": "cpu"}) == "float32"
    assert recorded_dtype({"config": {"dtype": None}, "device": "NVIDIA H200"}) == "bfloat16"
    assert recorded_dtype({"config": {"dtype": "float16"}, "device": "cpu"}) == "float16"


def test_a_run_keeps_its_automatic_warm_up(tiny):
    config = tiny(iterations=20)
    folder = RunFolder(train(tiny(iterations=20, warmup_steps=1)))
    dataset = open_dataset(config.data)
    assert choose_resume_point(resolve(config, dataset), dataset, folder)[0].plan.warmup == 1
