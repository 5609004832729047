"""The optimizers as a library of their own: torch and nothing else, at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {names!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_a_step_needs_torch_alone():
    names = ("numpy", "pydantic", "rich", "yaml", "matplotlib", "tokenizers", "tiktoken", "safetensors", "jax", "scipy")
    code = """
import torch
p = torch.ones(3, requires_grad=True)
p.grad = torch.ones(3)
from danalab.optim import ADana, build_optimizer, get_schedule, list_optimizers, optimizer_spec
for flags in ({}, {"foreach": True}, {"fused": True}):
    ADana([p], **flags).step()
build_optimizer("dana-star-mk4", [p]).step()
print(get_schedule("cos_inf", 10, 2)(2), len(list_optimizers()) >= 6)
"""
    assert python(WITHOUT.format(names=names) + code).split() == ["1.0", "True"]


def test_schedules_rows_and_settings_do_not_load_torch():
    code = """
import sys
from danalab.optim.catalogue import OPTIMIZERS
from danalab.optim.schedules import get_schedule
from danalab.optim.settings import ADanaSettings
get_schedule("wsd", 10, 1)(3)
print(OPTIMIZERS.get("sophiag").name, "torch" in sys.modules)
"""
    assert python(code).split() == ["sophia", "False"]


@pytest.mark.slow
def test_modules_answer_to_their_names_of_version_0_1():
    code = """
import sys
import danalab.optim
print("torch" in sys.modules)
from danalab.optim.core import DecayingOptimizer
from danalab.optim.core.rule import Rule
from danalab.optim.elementwise.scalars import decay_factor
from danalab.optim.matrix import MuonH
from danalab.optim.matrix.newton_schulz import orthogonalize
from danalab.optim.registry.spec import OptimizerSpec, Setting, settings_of
"""
    assert python(code).strip() == "False"


@pytest.mark.slow
def test_importing_loads_little_beyond_torch():
    code = """
import sys, torch
before = set(sys.modules)
import danalab.optim
from danalab.optim import ADana
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
heavy = [name for name in sys.modules if name.startswith(("torch._inductor", "torch.distributed.tensor"))]
print(sorted(new), [name for name in heavy if name not in before])
"""
    assert python(code).strip() == "['danalab', 'lazy_loader'] []"
