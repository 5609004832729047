"""Tests whose bodies run on a CPU and on a GPU: the fixture `device` is each of them in turn; `make gpu-check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from text_data import prepare_lines

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def float32_products() -> Iterator[None]:
    """Products in float32 are exact; a training run makes them TensorFloat32 for its process."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_lines(tmp_path_factory.mktemp("data"), 400, 12, end=".")
