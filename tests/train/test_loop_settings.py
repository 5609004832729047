"""When rows, evaluations and checkpoints are due."""

from __future__ import annotations

import pytest

from danalab.data import open_dataset
from danalab.train.config.resolve import resolve


@pytest.mark.parametrize("iterations", [1, 7, 10, 60, 150, 3000])
def test_a_run_that_is_long_enough_is_evaluated_ten_times_and_every_200_steps(tiny, data, iterations):
    spec = resolve(tiny(iterations=iterations, batch_size=64, eval_interval=None), open_dataset(data))
    evaluated = [step for step in range(1, iterations + 1) if spec.is_evaluated(step)]
    assert len(evaluated) >= min(10, max(1, iterations // 2))
    assert len(evaluated) <= max(19, iterations // 200 + 1)
    assert spec.eval_interval <= 200
    assert evaluated[-1] == iterations


def test_an_interval_of_0_evaluates_at_the_end_only(tiny, data):
    spec = resolve(tiny(iterations=30, eval_interval=0), open_dataset(data))
    assert [step for step in range(1, 31) if spec.is_evaluated(step)] == [30]
