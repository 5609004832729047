"""The optimizers as a library of their own: torch and nothing else, at once."""

from __future__ import annotations

import re
import subprocess
import sys

ALONE = """
import sys
from importlib.util import find_spec
from pathlib import Path
PACKAGES = tuple(str(Path(find_spec(name).origin).parent) + "/" for name in ("danalab",))
class Alone:
    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        # importlib.util is a file on Python 3.10 and frozen later.
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        allowed = {"torch", "danalab"} | set(sys.stdlib_module_names)
        if frame.f_code.co_filename.startswith(PACKAGES) and name.split(".")[0] not in allowed:
            raise ModuleNotFoundError(f"danalab imports {name}", name=name)
sys.meta_path.insert(0, Alone())
"""
STEPS = """
import io, torch
from danalab.optim import ADana, build_optimizer, get_schedule, list_optimizers, lr_scheduler, warmup_steps
p = torch.ones(4, 4, requires_grad=True)
p.grad = torch.ones(4, 4)
for flags in ({}, {"fused": False}, {"fused": True}):
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


def test_steps_state_and_schedules_import_torch_alone():
    assert python(ALONE + STEPS).split() == ["1.0", "True"]


VERBS = """
from danalab.cli.app import COMMANDS, main
assert not any(main([word]) for word in ("--help", "--version"))
lacking = [[verb] for verb in COMMANDS if verb != "bench"]
lacking += [["optim", "compare"]]
print(len(lacking), *map(main, lacking), file=sys.stderr)
"""


def test_verbs_say_in_one_line_what_they_need_beside_torch():
    done = subprocess.run([sys.executable, "-c", ALONE + VERBS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *lines, codes = done.stderr.splitlines()
    assert codes.split() == [str(len(lines)), *["2"] * len(lines)]
    for line in lines:
        assert re.fullmatch(r"danalab: error: danalab \w+ needs [^:]+: .*pip install .*\[lab\]'", line)
