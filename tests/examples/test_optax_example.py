"""The optax example, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "optax_loop.py"


@pytest.mark.slow
def test_the_optax_loop_trains():
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [float(number) for number in re.findall(r"loss ([0-9.e+-]+)", done.stdout)]
    assert found[-1] < 1e-3 * found[0]
