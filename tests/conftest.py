"""Shared by all tests: one thread per process (the suite runs in parallel), hypothesis examples, the golden arrays."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch: a forked child hangs where its parent had a team of threads

import pytest
import torch
import torch._dynamo  # every optimizer imports it: here once, not in each forked rank (1.5 s of CPU)
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("fixed", derandomize=True)
settings.register_profile("random", print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    """The fast suite checks the same examples in every run; one that takes the slow tests draws new ones."""
    if not config.getoption("--hypothesis-profile", None):
        fast = "not slow" in config.getoption("markexpr")
        settings.load_profile("fixed" if fast else "random")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test with the mark `sample(n)`, n stay in the fast suite, evenly spaced."""
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sample")
        if mark is not None and item.get_closest_marker("slow") is None:
            cases.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item)
    for (_, count), each in cases.items():
        kept = {(2 * i + 1) * len(each) // (2 * count) for i in range(count)}
        for number, item in enumerate(each):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def one_thread():
    """A test may start threads in this process; the next one has one again, as forked children do."""
    yield
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of arrays measured on independent implementations."""
    return Path(__file__).parent / "fixtures" / "golden"
