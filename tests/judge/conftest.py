"""Optimizers that misbehave, in a file."""

from __future__ import annotations

import pytest

MISBEHAVING = '''
import os, time
import torch

class Signs(torch.optim.Optimizer):
    """The sign of each gradient."""

    def __init__(self, params, lr=1e-3, scale=1.0):
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure=None):
        print("said on stdout")
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * group["scale"] * p.grad.sign())

class Parts(Signs):
    def __init__(self, params, lr=1e-3, good=False, bad=False, idle=0):
        super().__init__(params, lr)

class Raises(Signs):
    def step(self, closure=None):
        raise RuntimeError("no step\\ntoday")

class Dies(Signs):
    def step(self, closure=None):
        os._exit(7)

class Hangs(Signs):
    def step(self, closure=None):
        time.sleep(1e6)

class Diverges(Signs):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.fill_(float("nan"))
'''


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(MISBEHAVING)
    return file
