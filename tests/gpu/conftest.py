"""Tests whose bodies run on a CPU and on a GPU: the fixture `device` is each of them in turn.

`scripts/gpu_check.sh` runs them on a GPU; elsewhere the CPU's part is a part of the suite: a fast case of each body in
`make test`, the others marked slow. With PRETEND_GPU=1 the GPU's part runs on a CPU that says it is a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from danalab_bench.gpu_pretend import pretend_gpu
from text_data import prepare_lines

PRETENDS = bool(os.environ.get("PRETEND_GPU"))
needs_gpu = pytest.mark.skipif(not (torch.cuda.is_available() or PRETENDS), reason="torch sees no CUDA device")
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def pretended(request: pytest.FixtureRequest) -> Iterator[None]:
    """The GPU of a dry run."""
    if PRETENDS:
        with pretend_gpu(kernels=request.path.name == "test_optimizers.py"):
            yield
    else:
        yield


@pytest.fixture(autouse=True)
def working_device(pretended: None) -> Iterator[None]:
    """A test that broke the process's use of the GPU ends the process: xdist starts another for the tests after it."""
    yield
    if torch.cuda.is_available() and "PYTEST_XDIST_WORKER" in os.environ:
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            os._exit(1)


@pytest.fixture(autouse=True)
def float32_products(pretended: None) -> Iterator[None]:
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
