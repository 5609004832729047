"""Shared by all tests: one thread per process (the suite runs in parallel), hypothesis examples, the golden arrays.

No test depends on those before it: each starts from the same seeds, and what it changes in its process is put back.
"""

from __future__ import annotations

import gc
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch: a forked child hangs where its parent had a team of threads

import pytest
from hypothesis import settings

import required_tools

# No deadline of an example: a machine may be busy.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("random", print_blob=True, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """The fast suite checks the same examples in every run; one that takes the slow tests draws new ones."""
    config.pluginmanager.register(required_tools)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not os.access(
        next(each for each in (caches, *caches.parents) if each.exists()), os.W_OK
    ):  # a home to read only
        caches = Path(tempfile.gettempdir()) / f"danalab-tests-{os.getuid()}"
        os.environ |= {"XDG_CACHE_HOME": str(caches), "MPLCONFIGDIR": str(caches / "matplotlib")}
    if not config.getoption("--hypothesis-profile", None):
        fast = "not slow" in config.getoption("markexpr")
        settings.load_profile("fixed" if fast else "random")
    if not config.getoption(
        "numprocesses", None
    ):  # the process that distributes tests to others needs no torch
        import torch
        import torch._dynamo  # every optimizer imports it: here once, not in each forked rank (1.5 s of CPU)

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.hookimpl(optionalhook=True)  # pytest alone, without xdist, runs the tests as well
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: while a test waits for its processes, another runs."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests run in one process, which makes what they share once; files go out in their order."""
    if config.getvalue("dist") != "load":  # another one was asked for
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # those with most tests first would be those of JAX, too
    return LoadFileScheduling(config, log)


JAX_TESTS = (
    "tests/theory/",
    "tests/optim/test_optax.py",
    "tests/examples/test_optax_example.py",
)
"""They come last: JAX starts threads, and a process that forks, as other tests do, may not have any."""


def pytest_collection(session: pytest.Session) -> None:
    """Nearly all objects of the imports and of the tests stay to the end: garbage is not looked for among them."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The same random numbers whichever tests ran before, in fixtures as well."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(
        0
    )  # `torch.manual_seed` also keeps a stack for each kind of accelerator


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
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
    for item in items:
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1800))
    yield
    items.sort(
        key=lambda item: item.nodeid.startswith(JAX_TESTS)
    )  # stable; other hooks may have changed the order


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    from isolation import kept_process

    with kept_process():
        yield


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of arrays measured on independent implementations."""
    return Path(__file__).parent / "fixtures" / "golden"
