"""The kernels for CPUs: those of other processors, and none. For graphs see test_compile.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import ADana, DanaStarMK4, kernels
from targets import TARGETS, WIDE, compiled_for


def trained(build, step, steps=4):
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape)) for shape in ((6, 5), (70,), (3, 2))]
    optimizer = build(params, lr=1e-2, omega=4.0, horizon=100)
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - t / 8)
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * t + i))
        with torch.no_grad():
            step(optimizer)
    return params


def eagerly(optimizer):
    optimizer.param_groups[0]["fused"] = False
    optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize("target", [target for target in TARGETS if target != WIDE])
@pytest.mark.parametrize("build", [ADana, DanaStarMK4])
def test_kernels_of_other_processors_compute_the_same(build, target):
    with compiled_for(target):
        native = trained(build, lambda o: o.step())
    for a, b in zip(native, trained(build, eagerly), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-7)


def test_fused_demands_a_compiler(monkeypatch):
    monkeypatch.setattr(kernels, "library", lambda: (_ for _ in ()).throw(UserError("no compiler")))
    kernels.has_kernels.cache_clear()
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    with pytest.raises(UserError, match="no compiler"):
        ADana([p], fused=True).step()
    ADana([p]).step()  # without it steps take longer
    kernels.has_kernels.cache_clear()
