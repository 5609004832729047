"""How the threads of training verbs wait for each other, as OpenMP's library reports it when torch loads it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

SHOW = "import sys; from danalab.cli.app import main; main(sys.argv[1:]); import torch; print('loaded')"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("verb", "chosen", "spins"),
    [
        ("train --print-config", {}, "1000"),
        ("train --print-config", {"GOMP_SPINCOUNT": "77"}, "77"),
        pytest.param("train --print-config", {"OMP_WAIT_POLICY": "PASSIVE"}, "0", marks=pytest.mark.slow),
        ("bench --help", {}, None),
    ],
)
def test_waiting_threads_of_training_verbs_sleep_soon(verb, chosen, spins):
    usual = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *verb.split()],
        env={**usual, **chosen, "OMP_DISPLAY_ENV": "VERBOSE"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.endswith("loaded\n"), done.stderr
    shown = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if not shown:
        pytest.skip("torch's OpenMP is not GNU's")
    if spins is None:
        assert set(shown).isdisjoint({"0", "1000"})
    else:
        assert set(shown) == {spins}
