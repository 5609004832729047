"""optax's suite of its contributed optimizers (`contrib/_common_test.py` of its source archive) on the five twins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata

import pytest

from sdists import sdist

TWINS = """
from danalab.optim import optax as ours

_MAIN_OPTIMIZERS_UNDER_TEST = tuple(
    {"opt_name": name, "opt_kwargs": {"learning_rate": rate}, "wrapper_name": None, "wrapper_kwargs": None}
    for name, rate in (("adana", 1e-3), ("dana_mk4", 1e-3), ("dana_star", 1e-3), ("dana_star_mk4", 1e-3),
                       ("dana_muon", 1e-2))
)
_ALL_OPTIMIZERS_UNDER_TEST = _MAIN_OPTIMIZERS_UNDER_TEST
for entry in _MAIN_OPTIMIZERS_UNDER_TEST:
    setattr(contrib, entry["opt_name"], getattr(ours, entry["opt_name"]))


class ContribTest("""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_optaxs_suite_passes_on_the_twins(tmp_path, tmp_path_factory):
    source = sdist("optax", metadata.version("optax"), tmp_path_factory.getbasetemp().parent)
    suite = tmp_path / "twins_test.py"
    text = (source / "optax/contrib/_common_test.py").read_text()
    assert text.count("\nclass ContribTest(") == 1
    suite.write_text(text.replace("\nclass ContribTest(", TWINS))
    done = subprocess.run(
        [sys.executable, str(suite)], capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = re.search(r"Ran (\d+) tests", done.stderr)
    assert said is not None
    assert int(said[1]) >= 80
