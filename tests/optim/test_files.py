"""An optimizer is one file: copied beside torch it steps, saves and loads as in the library; and so is a new one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import danalab.optim
from danalab.optim.base import Optimizer
from danalab.optim.dana import ADana, DanaMK4, DanaStar, DanaStarMK4
from danalab.optim.muon import DanaMuon, DMuon, Manau, Muon

FOLDER = Path(danalab.optim.__file__).parent
FAMILIES = {
    "dana": ((ADana, DanaMK4, DanaStar, DanaStarMK4), ("base",)),
    "muon": ((Muon, DMuon, DanaMuon, Manau), ("base", "dana", "adamw", "groups", "newton_schulz")),
}
"""File -> its classes, and the files that it imports."""
STEPS = """
from pasted_{module}.{module} import {names}
torch.manual_seed(0)
found = []
for build in ({names},):
    params = [torch.nn.Parameter(torch.randn(6, 5)), torch.nn.Parameter(torch.randn(5))]
    optimizer = build(params, lr=1e-2, weight_decay=1e-3)
    for step in range(6):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(2 * step + i))
        optimizer.step()
        if step == 2:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer = build(params, lr=1.0)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
    found += [p.detach() for p in params]
torch.save(found, "{module}.pt")
assert not [name for name in sys.modules if name.startswith("danalab")], "danalab was imported"
"""


def library(builds):
    torch.manual_seed(0)
    found = []
    for build in builds:
        params = [torch.nn.Parameter(torch.randn(6, 5)), torch.nn.Parameter(torch.randn(5))]
        optimizer = build(params, lr=1e-2, weight_decay=1e-3)
        for step in range(6):
            for i, p in enumerate(params):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(2 * step + i))
            optimizer.step()
        found += [p.detach() for p in params]
    return found


@pytest.mark.filterwarnings("ignore:parameters without names")
def test_a_copied_family_is_bitwise_the_library(tmp_path, monkeypatch):
    monkeypatch.setattr(Optimizer, "fast_step", None)  # kernels.cpp is not copied
    code = "import io, sys, torch"
    for module, (builds, files) in FAMILIES.items():
        folder = tmp_path / f"pasted_{module}"
        folder.mkdir()
        for name in (module, *files):
            shutil.copy(FOLDER / f"{name}.py", folder)
        code += STEPS.format(module=module, names=", ".join(build.__name__ for build in builds))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for module, (builds, _) in FAMILIES.items():
        found = torch.load(tmp_path / f"{module}.pt")
        assert all(torch.equal(a, b) for a, b in zip(found, library(builds), strict=True))


def test_a_new_optimizer_is_one_file(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "extend.md").read_text()
    code = re.search(r"<!-- file: log_lion.py -->\n```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    assert len(code[1].splitlines()) <= 70
    (tmp_path / "log_lion.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    from danalab.optim import build_optimizer, settings_of

    name = "log_lion.py:LogLion"
    assert settings_of(name)["fast"].help == "weight of the new gradient in the step."
    model = torch.nn.Linear(4, 3)
    optimizer = build_optimizer(name, model, omega=4.0, horizon=100, fast=0.5)
    loss = [0.0, 0.0]
    for step in range(40):
        value = (model(torch.ones(2, 4)) - 1).square().mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        loss[step == 39] = value.item()
    assert loss[1] < loss[0] or loss[1] < 1e-3
