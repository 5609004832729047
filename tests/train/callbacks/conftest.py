"""The context of a callback without a trainer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from danalab.train import TrainConfig
from danalab.train.callbacks.base import CallbackContext
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World


@pytest.fixture
def watching(tmp_path):
    """Makes the context of a run in `tmp_path` by one process: watching(model, optimizer, SETTING=VALUE, ...)."""

    def make(
        model: Any = None, optimizer: Any = None, *, iterations: int = 1000, **settings: Any
    ) -> CallbackContext:
        strategy = ParallelStrategy(World())
        if model is not None:
            strategy.attach(list(model.parameters()))
        spec = TrainConfig(iterations=iterations, **settings)
        consumption: Any = None
        optimizer = SimpleNamespace(param_groups=[]) if optimizer is None else optimizer
        return CallbackContext(spec, tmp_path, model, optimizer, strategy, consumption)

    return make
