"""Every back end of an optimizer on a device: the float64 oracle's numbers, at any clock, dtype and capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from danalab.optim import build_optimizer
from danalab.optim.optimizers.matrix.newton_schulz import orthogonalize
from danalab_bench.contenders import captured

NAMES = (
    *("adana", "dana-mk4", "dana-star", "dana-star-mk4", "adamw-decaying-wd"),
    *("ademamix", "auto-dana", "dana", "sign-dana"),
)
BACKENDS: dict[str, dict[str, bool]] = {
    "default": {},
    "eager": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}
SHAPES = [(40, 30), (7,), (2000,)]
RATES = [0.02, 0.05, 0.03, 0.0, 0.01]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def parameters(device: torch.device, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    # Numbers that bfloat16 has, so that every dtype starts from the same ones.
    drawn = [torch.randn(shape, generator=draw).bfloat16() for shape in SHAPES]
    return [x.to(device, dtype).requires_grad_() for x in drawn]


def set_gradients(params: list[Tensor], step: int, scale: float = 1.0) -> None:
    draw = torch.Generator().manual_seed(100 + step)
    for p in params:
        g = scale * torch.randn(p.shape, generator=draw).bfloat16().to(p.device, p.dtype)
        if p.grad is None:
            p.grad = g
        else:
            p.grad.copy_(g)


def build(name: str, params: Any, **settings: Any) -> Any:
    decay = {} if name == "ademamix" else {"omega": 2.0, "horizon": 100}
    return build_optimizer(name, params, lr=0.05, **decay, **settings)


def oracle(name: str, steps: int = len(RATES)) -> list[Tensor]:
    """Parameters after some steps of the reference in float64."""
    params = parameters(torch.device("cpu"), torch.float64)
    optimizer = build(name, params, foreach=False, fused=False)
    for step in range(steps):
        set_gradients(params, step)
        optimizer.param_groups[0]["lr"] = RATES[step]
        optimizer.step()
    return params


def assert_near(found: list[Tensor], want: list[Tensor], tolerance: float = 2e-5) -> None:
    for p, q in zip(found, want, strict=True):
        torch.testing.assert_close(p.detach().cpu().double(), q.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_back_end_follows_the_oracle_through_changing_rates(device, name, backend):
    params = parameters(device)
    optimizer = build(name, params, **BACKENDS[backend])
    for step, rate in enumerate(RATES):
        for p in params:
            p.grad = None  # new addresses, as in training
        set_gradients(params, step)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    assert_near(params, oracle(name))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("backend", ["default", "eager", "foreach", "capturable"])
@pytest.mark.parametrize("name", ["adana", "dana-star-mk4"])
def test_parameters_of_16_bits_are_rounded_once_and_their_moments_are_float32(device, name, backend, dtype):
    params = parameters(device, DTYPES[dtype])
    optimizer = build(name, params, **BACKENDS[backend])
    optimizer.param_groups[0]["lr"] = RATES[0]
    set_gradients(params, 0)
    optimizer.step()
    assert_near(params, oracle(name, steps=1), tolerance=1.1 * torch.finfo(DTYPES[dtype]).eps)
    moments = [value for p in params for key, value in optimizer.state[p].items() if key != "step"]
    assert {value.dtype for value in moments} == {torch.float32}
    assert {value.device.type for value in moments} == {device.type}


@pytest.mark.parametrize("state_dtype", ["bf16+8", "8bit"])
def test_moments_of_fewer_bytes_follow_those_of_the_cpu(device, state_dtype):
    finished = []
    for place in (torch.device("cpu"), device):
        params = parameters(place)
        optimizer = build("adana", params, state_dtype=state_dtype)
        for step in range(3):
            set_gradients(params, step)
            optimizer.step()
        finished.append([p.detach().cpu() for p in params])
    for p, q in zip(*finished, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=5e-3)  # a last bit may decide how a moment is rounded


@pytest.mark.parametrize("name", ["adana", "dana-star-mk4"])
def test_a_step_is_skipped_on_the_device(device, name):
    params = parameters(device)
    optimizer = build(name, params, capturable=True)
    set_gradients(params, 0)
    optimizer.step(found_nonfinite=torch.tensor(False, device=device))
    before = [p.detach().clone() for p in params]
    params[0].grad.fill_(float("nan"))
    optimizer.step(found_nonfinite=torch.tensor(True, device=device))
    assert all(torch.equal(p, old) for p, old in zip(params, before, strict=True))
    assert [int(optimizer.state[p]["step"]) for p in params] == [1, 1, 1]
    assert all(optimizer.state[p]["exp_avg"].isfinite().all() for p in params)


class Reads(TorchDispatchMode):
    """Counts the numbers that the host reads from tensors: on a GPU it waits for each. And fills: each is a launch."""

    count = fills = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        self.fills += func.overloadpacket.__name__ in ("full", "scalar_tensor", "zeros", "fill_", "new_full")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_whose_clock_is_on_the_device_reads_no_number(device, name, skips):
    params = parameters(device)
    optimizer = build(name, params, capturable=True)
    set_gradients(params, 0)
    optimizer.step()  # the first one may compare the kernel with the reference
    with Reads() as reads:
        optimizer.step(found_nonfinite=torch.tensor(False, device=device) if skips else None)
    assert reads.count == 0
    assert reads.fills <= 8  # three for adana; a few numbers of the other rules, whatever the number of parameters


def repeatable(optimizer: Any, device: torch.device) -> Callable[[], Any]:
    """The step; on a GPU as a CUDA graph."""
    return captured(optimizer) if device.type == "cuda" else optimizer.step


@pytest.mark.parametrize("fused", [None, False], ids=["default", "eager"])
@pytest.mark.parametrize("name", ["adana", "dana-mk4", "dana-star-mk4", "adamw-decaying-wd"])
def test_a_captured_step_follows_rate_decay_and_clock(device, name, fused):
    """The known trap: a graph repeats the numbers that it was captured with."""
    params = parameters(device)
    rate = torch.tensor(0.05, device=device)
    optimizer = build(name, params, capturable=True, fused=fused)
    optimizer.param_groups[0]["lr"] = rate
    set_gradients(params, 0)
    optimizer.step()
    step_again = repeatable(optimizer, device)
    with torch.no_grad():  # back to the beginning: the graph keeps the addresses
        for p, first in zip(params, parameters(device), strict=True):
            p.copy_(first)
            for value in optimizer.state[p].values():
                value.zero_()
    for step, value in enumerate(RATES):
        set_gradients(params, step)
        rate.fill_(value)
        step_again()
    assert [int(optimizer.state[p]["step"]) for p in params] == [len(RATES)] * 3
    assert_near(params, oracle(name))


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
    assert_near(params, oracle(name, steps=2))
    assert scaler.get_scale() == 4.0


def test_state_follows_a_model_that_moves_after_the_optimizer_was_built(device):
    model = nn.Linear(5, 3)
    optimizer = build("dana-star-mk4", model)
    model.to(device)
    model(torch.ones(2, 5, device=device)).sum().backward()
    optimizer.step()
    state = [value for p in model.parameters() for key, value in optimizer.state[p].items() if key != "step"]
    assert {value.device.type for value in state} == {device.type}


@pytest.mark.parametrize("capturable", [False, True])
def test_a_state_dict_goes_to_another_device_and_back(device, capturable):
    there, here = parameters(device), parameters(torch.device("cpu"))
    first = build("adana", there, capturable=capturable)
    set_gradients(there, 0)
    first.step()
    second = build("adana", here)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        for p, q in zip(here, there, strict=True):
            p.copy_(q)
    third = build("adana", there, capturable=capturable)
    third.load_state_dict(second.state_dict())
    for params, optimizer in ((here, second), (there, third)):
        set_gradients(params, 1)
        optimizer.step()
    assert_near(there, [p.detach().double() for p in here], tolerance=1e-5)


def test_matrices_are_orthogonalised_on_the_device(device):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 24, 40, generator=draw)
    u, _, v = torch.linalg.svd(x.double(), full_matrices=False)
    found = orthogonalize(x.to(device), "polar-express", 8, torch.float32)
    torch.testing.assert_close(found.cpu().double(), u @ v, rtol=0, atol=0.2)
    assert orthogonalize(x.to(device)).dtype == (torch.bfloat16 if device.type == "cuda" else torch.float32)


@pytest.mark.parametrize("name", ["muon", "d-muon", "manau"])
def test_a_matrix_optimizer_steps_as_on_the_cpu(device, name):
    found = {}
    for place in ("cpu", device.type):
        model = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 24), nn.Linear(24, 11, bias=False)).to(place)
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
