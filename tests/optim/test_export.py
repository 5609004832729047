"""`danalab optim export`: one file from the rules' own source that makes the library's steps bit for bit."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from danalab.cli.app import main
from danalab.optim import build_optimizer, optimizer_spec
from danalab.optim.export import EXPORTED, export

ROOT = Path(__file__).parents[2]
STEPS = 200

MATRICES = ("muon", "d-muon", "dana-muon", "manau")
SETTINGS = {
    "plain": {"lr": 3e-3},
    "omega": {"lr": 3e-3, "omega": 4.0, "horizon": STEPS},
    "decay": {"lr": 3e-3, "weight_decay": 0.02},
    "bounded": {"lr": 3e-3, "weight_decay": 0.1, "decay_bound": 0.5},
}


def exported(name: str) -> str:
    return export(name, f"danalab optim export {name}")


def class_of(name: str):
    """The class of the exported file."""
    scope: dict = {"__name__": name.replace("-", "_")}
    exec(compile(exported(name), f"{name}.py", "exec"), scope)
    return scope[optimizer_spec(name).build.__name__]


def named_parameters() -> list[tuple[str, torch.nn.Parameter]]:
    """A table, square, tall and wide matrices, a convolution, a head and vectors."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "wte.weight": (11, 6),
        "blocks.0.attn.q.weight": (6, 6),
        "blocks.0.mlp.up.weight": (24, 6),
        "blocks.0.mlp.down.weight": (6, 24),
        "blocks.0.conv.weight": (6, 3, 2, 2),
        "blocks.0.norm.weight": (6,),
        "blocks.0.mlp.up.bias": (24,),
        "lm_head.weight": (11, 6),
    }
    return [(name, torch.nn.Parameter(torch.randn(s, generator=generator))) for name, s in shapes.items()]


def trained(build, steps: int = STEPS, resume_at: int | None = None, late: bool = True):
    """Parameters after some steps with noisy gradients under a schedule; some parameters miss gradients at first."""
    named = named_parameters()
    optimizer = build(named)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / 20) * (1 - t / (2 * steps)))
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        if step == resume_at:
            state, optimizer = optimizer.state_dict(), build(named)
            optimizer.load_state_dict(state)
            scheduler.optimizer = optimizer
        for index, (_, p) in enumerate(named):
            noise = torch.randn(p.shape, generator=generator)
            p.grad = None if late and index % 3 == 0 and step < 7 else 0.3 * p.detach() + noise
        optimizer.step()
        scheduler.step()
    return [p.detach() for _, p in named]


def assert_same(name: str, resume_at: int | None = None, foreach: bool | None = None, **settings) -> None:
    flags = {} if foreach is None else {"foreach": foreach}
    cls = class_of(name)
    by_name = name in MATRICES
    ours = trained(lambda named: cls(named if by_name else [p for _, p in named], **settings, **flags), resume_at=resume_at)
    theirs = trained(
        lambda named: type_of(name)(named if by_name else [p for _, p in named], **settings, fused=False, **flags)
    )
    assert all(map(torch.equal, ours, theirs))


def type_of(name: str):
    return optimizer_spec(name).build


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", EXPORTED)
def test_the_steps_are_the_librarys(name, settings):
    assert_same(name, resume_at=90, **SETTINGS[settings])


@pytest.mark.parametrize("name", [name for name in EXPORTED if name not in MATRICES])
def test_lists_of_tensors_make_the_steps_of_the_librarys_lists(name):
    assert_same(name, foreach=True, **SETTINGS["omega"])
