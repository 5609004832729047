"""A run keeps the number format, the warm-up and the weight decay that it began with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from danalab.data import open_dataset
from danalab.errors import UserError
from danalab.train import train
from danalab.train.config.resolve import resolve
from danalab.train.run.folder import RunFolder
from danalab.train.run.resume import choose_resume_point


def test_a_run_that_moves_from_cpu_to_gpu_stays_in_float32(tiny):
    config = tiny(iterations=2)
    folder = RunFolder(train(config))
    dataset = open_dataset(config.data)
    assert folder.read_config()["config"]["dtype"] == "float32"
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


@pytest.mark.parametrize(("opt", "weight_decay"), [("adana", 1.0), ("adamw", 60.0)])
def test_a_run_keeps_its_automatic_warm_up_and_weight_decay(tiny, opt, weight_decay):
    config = tiny(iterations=20, opt=opt)
    then = {"warmup_steps": 1, "weight_decay": weight_decay, "decay_bound": 0}
    folder = RunFolder(train(tiny(iterations=20, opt=opt, **then)))
    dataset = open_dataset(config.data)
    fresh = resolve(config, dataset)
    kept = choose_resume_point(fresh, dataset, folder)[0]
    assert (kept.warmup_steps, kept.weight_decay, kept.decay_bound) == (1, weight_decay, 0)
    assert kept.optimizer_settings["weight_decay"] == weight_decay
    assert (fresh.warmup_steps, fresh.decay_bound) == (2, 2 if opt == "adana" else 1)
    with pytest.raises(UserError, match="--omega 3"):
        choose_resume_point(resolve(replace(config, omega=3.0), dataset), dataset, folder)
