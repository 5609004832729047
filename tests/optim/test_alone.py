"""The optimizers as a library of their own: torch and nothing else, at once."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

ALONE = """
import sys
from importlib.util import find_spec
from pathlib import Path
PACKAGES = tuple(str(Path(find_spec(name).origin).parent) + "/" for name in ("danalab", "danalab_annexes"))
class Alone:
    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_name == "import_module":
            frame = frame.f_back
        allowed = {"torch", "danalab", "danalab_annexes"} | set(sys.stdlib_module_names)
        if frame.f_code.co_filename.startswith(PACKAGES) and name.split(".")[0] not in allowed:
            raise ModuleNotFoundError(f"danalab imports {name}", name=name)
sys.meta_path.insert(0, Alone())
"""
STEPS = """
import io, torch
from danalab.optim import ADana, build_optimizer, get_schedule, list_optimizers, lr_scheduler, warmup_steps
p = torch.ones(4, 4, requires_grad=True)
p.grad = torch.ones(4, 4)
for flags in ({}, {"foreach": True}, {"fused": True}):
    ADana([p], **flags).step()
for name in ("dana-star-mk4", "muon"):
    optimizer = build_optimizer(name, [p], omega=4.0, horizon=10) if "dana" in name else build_optimizer(name, [p])
    scheduler = lr_scheduler(optimizer, get_schedule("cos_inf", 10, warmup_steps(10)))
    optimizer.step()
    scheduler.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
print(get_schedule("cos_inf", 10, 2)(2), len(list_optimizers()) >= 6)
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


DRAWS = """
try:
    import danalab.experiments.drawing
except ModuleNotFoundError as error:
    print(error.name)
"""


def test_steps_state_and_schedules_import_torch_alone():
    assert python(ALONE + STEPS + DRAWS).split() == ["1.0", "True", "matplotlib"]


VERBS = """
from danalab.cli.app import _LIGHT, COMMANDS, main
assert not any(main([word]) for word in ("--help", "--version", "--cite"))
lacking = [[verb] for verb in COMMANDS if verb not in _LIGHT]
lacking += [["optim", "compare"], ["optim", "schedules"]]
print(len(lacking), *map(main, lacking), file=sys.stderr)
"""


def test_verbs_say_in_one_line_what_they_need_beside_torch():
    done = subprocess.run([sys.executable, "-c", ALONE + VERBS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *lines, codes = done.stderr.splitlines()
    assert codes.split() == [str(len(lines)), *["2"] * len(lines)]
    for line in lines:
        assert re.fullmatch(r"danalab: error: danalab \w+ needs [^:]+: .*pip install .*\[lab\]'", line)


def test_optimizers_are_listed_and_exported_with_torch_alone(tmp_path):
    file = tmp_path / "files" / "optimizer.py"
    code = f"""
from danalab.cli.app import main
words = ["", "list", "list --json", "list --opt dana-muon", "list --opt=soap --json", "list --json --no-json",
         "export adana --style=track3", "export muon --style nanochat --out {file}"]
assert not any(main(["optim", *each.split()]) for each in words)
for each in ("list --opt adam", "list --wrong", "list --json=perhaps", "export nothing", "export",
             "export muon --out {file}"):
    assert main(["optim", *each.split()]) == 2
"""
    done = subprocess.run([sys.executable, "-c", ALONE + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 6
    assert "needs" not in done.stderr.replace("is needed", "")
    assert "class Muon(" in file.read_text()


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
    assert python(code).strip() == "['danalab'] []"
