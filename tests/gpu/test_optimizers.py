"""Optimizers on a device: the numbers of float64 on the CPU, whatever computes the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from danalab.optim import build_optimizer

NAMES = ["adana", "dana-mk4", "dana-star", "dana-star-mk4", "adamw-decaying-wd", "ademamix"]
SHAPES = [(40, 30), (7,), (2000,)]
RATES = [0.02, 0.05, 0.03, 0.0, 0.01]


def parameters(device: torch.device | str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    # Numbers that bfloat16 has, so that every dtype starts from the same ones.
    drawn = [torch.randn(shape, generator=draw).bfloat16() for shape in SHAPES]
    return [x.to(device, dtype).requires_grad_() for x in drawn]


def set_gradients(params: list[Tensor], step: int, scale: float = 1.0) -> None:
    draw = torch.Generator().manual_seed(100 + step)
    for p in params:
        p.grad = scale * torch.randn(p.shape, generator=draw).bfloat16().to(p.device, p.dtype)


def build(name: str, params: Any, **settings: Any) -> Any:
    decay = {} if name == "ademamix" else {"omega": 2.0, "horizon": 100}
    return build_optimizer(name, params, lr=0.05, **decay, **settings)


def stepped(
    name: str, device: torch.device | str, dtype: torch.dtype, steps: int, **settings: Any
) -> list[Tensor]:
    params = parameters(device, dtype)
    optimizer = build(name, params, **settings)
    for step in range(steps):
        set_gradients(params, step)
        optimizer.param_groups[0]["lr"] = RATES[step]
        optimizer.step()
    return [p.detach().cpu().double() for p in params]


@pytest.mark.parametrize("fused", [None, False], ids=["default", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_follows_the_oracle_through_changing_rates(device, name, fused):
    found = stepped(name, device, torch.float32, len(RATES), fused=fused)
    want = stepped(name, "cpu", torch.float64, len(RATES), fused=False)
    for p, q in zip(found, want, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["adana", "dana-star-mk4"])
def test_parameters_of_16_bits_are_rounded_once(device, name, dtype):
    tolerance = 1.1 * torch.finfo(dtype).eps
    want = stepped(name, "cpu", torch.float64, 1, fused=False)
    for p, q in zip(stepped(name, device, dtype, 1), want, strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["adana", "dana-star-mk4"])
def test_torchs_gradient_scaler_unscales_and_skips(device, name):
    params = parameters(device)
    optimizer = build(name, params)
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=1000)
    for step, overflows in ((0, False), (7, True), (1, False)):
        scaler.scale(torch.zeros((), device=device))  # creates the scale, as the loss does
        set_gradients(params, step, scale=scaler.get_scale())
        if overflows:
            params[1].grad[0] = float("inf")
        optimizer.param_groups[0]["lr"] = RATES[min(step, 1)]
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 4.0
    want = stepped(name, "cpu", torch.float64, 2, fused=False)
    for p, q in zip(params, want, strict=True):
        torch.testing.assert_close(p.detach().cpu().double(), q, rtol=2e-5, atol=2e-5)


def test_state_follows_a_model_that_moves_after_the_optimizer_was_built(device):
    model = nn.Linear(5, 3)
    optimizer = build("dana-star-mk4", model)
    model.to(device)
    model(torch.ones(2, 5, device=device)).sum().backward()
    optimizer.step()
    state = [value for p in model.parameters() for key, value in optimizer.state[p].items() if key != "step"]
    assert {value.device.type for value in state} == {device.type}


@pytest.mark.parametrize("name", ["muon", "dana-muon"])
def test_a_matrix_optimizer_steps_as_on_the_cpu(device, name):
    found = {}
    for place in ("cpu", device.type):
        model = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 24), nn.Linear(24, 11, bias=False)).to(
            place
        )
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
        optimizer = build_optimizer(name, model, lr=0.02)
        params = list(model.parameters())
        for step in range(3):
            set_gradients(params, step)
            optimizer.step()
        found[place] = [p.detach().cpu() for p in params]
    for p, q in zip(*(found[place] for place in ("cpu", device.type)), strict=True):
        torch.testing.assert_close(p, q, rtol=0.02, atol=5e-3)  # orthogonalised in bfloat16 on GPUs
