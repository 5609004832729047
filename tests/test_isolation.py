"""Tests do not see what others did in their process."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch

from isolation import kept_process

DRAWS = []


@pytest.mark.parametrize("turn", range(2))
def test_every_test_starts_from_the_same_seeds_environment_and_threads(turn):
    DRAWS.append((torch.rand(1).item(), random.random(), np.random.random()))
    assert DRAWS[0] == DRAWS[-1]
    assert "LEFT_BY_A_TEST" not in os.environ
    assert torch.get_num_threads() == 1
    os.environ["LEFT_BY_A_TEST"] = str(turn)
    torch.set_num_threads(2)


@pytest.mark.parametrize(
    "leave",
    [
        lambda: os.chdir("/"),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_grad_enabled(False),
    ],
)
def test_another_folder_default_type_or_gradient_mode_is_an_error_and_put_back(leave):
    with pytest.raises(AssertionError), kept_process():
        leave()
