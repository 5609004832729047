"""What skips for a missing tool fails under CI, and what is pinned installs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
no_browser = pytest.mark.skipif(True, reason="needs Chromium")
def test_package(): pytest.importorskip("a_package_that_is_not_there")
@no_browser
def test_tool(): pass
@pytest.fixture
def browser(): pytest.skip("needs Chromium")
def test_fixture(browser): pass
@pytest.mark.slow
@no_browser
def test_slow(): pass
@pytest.mark.skipif(True, reason="torch sees no CUDA device")
def test_machine(): pass
@pytest.mark.xfail(reason="known")
def test_expected(): raise AssertionError
def test_sound(): pass
def test_kernel(): raise ValueError("fused=True needs a C++ compiler, but no C++ compiler is on PATH")
"""


def run_pytest(place: Path, *words: str, **environment: str) -> str:
    """The last lines of a run in a folder, without the plug-ins and settings of this machine."""
    given = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
    command += ["-o", "markers=slow", *words]
    done = subprocess.run(command, cwd=place, env=given, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("ci", "compiler", "counts"),
    [
        ("", "", "1 passed, 6 skipped, 1 xfailed"),
        ("", sys.executable, "1 failed, 1 passed, 5 skipped, 1 xfailed"),
        ("true", "", "2 failed, 1 passed, 2 skipped, 1 xfailed, 2 errors"),
    ],
)
def test_a_missing_tool_is_a_skip_and_under_ci_a_failure(tmp_path, ci, compiler, counts):
    (tmp_path / "test_a.py").write_text(TESTS)
    place = {"PATH": "", "CXX": compiler, "PYTHONPATH": str(ROOT / "tests")}
    said = run_pytest(tmp_path, "-p", "required_tools", CI=ci, **place)
    assert counts in said, said
    assert ("under CI every tool" in said) == bool(ci)


def test_what_is_pinned_installs_on_the_first_release_of_this_python():
    """A distribution of Linux may keep it: Debian 12 has 3.11.2."""
    first = f"{sys.version_info.major}.{sys.version_info.minor}.0"
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        pin = Requirement(line.partition("#")[0]) if line.partition("#")[0].strip() else None
        if pin is None or (pin.marker and not pin.marker.evaluate()):
            continue
        try:
            found = metadata.distribution(pin.name)
        except metadata.PackageNotFoundError:  # of an extra that is not installed
            continue
        if found.version in pin.specifier:
            assert first in SpecifierSet(found.metadata.get("Requires-Python", "")), line
