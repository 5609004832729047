"""Tests of pytorch-optimizer 4 (its source archive) with our classes in place of its own.

Training to a loss, also in bfloat16 and with a learning rate that is a tensor, checkpoints, closures, and values out of
range. Each test takes its optimizers from tables that the plug-in below fills with ours.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import pytest

from sdists import sdist

PLUGIN = """
import pathlib, sys, types
from pytorch_optimizer.base import exception
exception.NegativeLRError = ValueError  # ours is a UserError, which is one
from pytorch_optimizer import optimizer
from danalab import optim

RATES = {name: 0.2 for name in ("ADana", "AdamWDecayingWD", "AdEMAMix", "AdEMAMixDecayingWD", "Dana", "DanaMK4",
                                "DanaStar", "DanaStarMK4", "SignDana", "DanaMuon", "DMuon", "Manau")}
optimizer.OPTIMIZERS.clear()
optimizer.OPTIMIZERS.update({name.lower(): getattr(optim, name) for name in RATES})

source = pathlib.Path("tests/optimizer_cases.py").read_text()
probe = "    if optimizer_name in SKIP_CAPABILITY_PROBE:"
assert probe in source
cases = sys.modules["tests.optimizer_cases"] = types.ModuleType("tests.optimizer_cases")
exec(source.replace(probe, "    if True:  # ours refuse complex parameters and sparse gradients"), cases.__dict__)

from tests import recipes

for table in (recipes.OPTIMIZER_RECIPES, recipes.COMPILE_SUPPORTED_OPTIMIZERS):
    table[:] = [(name.lower(), {"lr": rate, "weight_decay": 1e-3}, 20) for name, rate in RATES.items()]
"""
SUITE = (
    "test_optimizers.py::TestOptimizerTraining",
    "test_optimizers.py::TestOptimizerInterface::test_checkpoint_resume",
    "test_optimizers.py::TestOptimizerInterface::test_closure",
    "test_general_optimizer_parameters.py::TestBasicParameterValidation::test_learning_rate",
    "test_general_optimizer_parameters.py::TestBasicParameterValidation::test_epsilon",
    "test_general_optimizer_parameters.py::TestBasicParameterValidation::test_weight_decay",
    "test_general_optimizer_parameters.py::TestBetaParameterValidation::test_betas",
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pytorch_optimizers_tests_pass_on_our_classes(tmp_path, tmp_path_factory):
    version = metadata.version("pytorch-optimizer")
    source = sdist("pytorch-optimizer", version, tmp_path_factory.getbasetemp().parent)
    (tmp_path / "ours_plugin.py").write_text(PLUGIN)
    code = f"import sys; sys.path[:0] = [{str(source)!r}, {str(tmp_path)!r}]; import pytest; sys.exit(pytest.main())"
    words = ["-q", "-c", "/dev/null", "--rootdir", str(source), "-p", "ours_plugin", "-p", "no:cacheprovider"]
    tests = [f"tests/{name}" for name in SUITE]
    done = subprocess.run([sys.executable, "-c", code, *words, *tests], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 80
