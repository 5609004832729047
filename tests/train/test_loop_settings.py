"""When rows, evaluations and checkpoints are due."""

from __future__ import annotations

import pytest

from danalab.data import open_dataset
from danalab.train.build import build_trainer
from danalab.train.config.resolve import resolve
from danalab.train.loop_settings import LoopSettings
from danalab.train.run.folder import RunFolder


@pytest.mark.parametrize("iterations", [1, 7, 10, 60, 150, 3000])
def test_a_run_is_evaluated_at_least_ten_times_and_at_least_every_200_steps(tiny, data, iterations):
    spec = resolve(tiny(iterations=iterations, eval_interval=None), open_dataset(data))
    settings = build_trainer(spec, open_dataset(data), RunFolder(spec.run_dir)).settings
    evaluated = [step for step in range(1, iterations + 1) if settings.is_evaluated(step)]
    assert len(evaluated) >= min(10, iterations)
    assert len(evaluated) <= max(19, iterations // 200 + 1)
    assert settings.eval_interval <= 200
    assert evaluated[-1] == iterations


def test_an_interval_of_0_evaluates_at_the_end_only():
    settings = LoopSettings(iterations=30, eval_interval=0)
    assert [step for step in range(1, 31) if settings.is_evaluated(step)] == [30]
