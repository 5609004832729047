"""Shared by all tests: one thread a process (the suite runs in parallel) and the golden arrays."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch: a forked child hangs where its parent had a team of threads

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of arrays measured on independent implementations."""
    return Path(__file__).parent / "fixtures" / "golden"
