"""The Triton kernel, in Triton's interpreter: the reference's numbers at every shape, dtype and clock."""

from __future__ import annotations

import importlib
import logging
import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from danalab.optim import ADana, DanaMK4, build_optimizer, optimizer_spec
from danalab.optim.optimizers.matrix import symmetric
from danalab.optim.rules.adana import ADANA
from danalab.optim.rules.rule import Rule
from danalab.optim.step.backends import choice, triton_step
from danalab.optim.step.batch import TensorBatch

pytest.importorskip("triton", reason="Triton is not installed: pip install 'danalab[triton]'")

NAMES = (
    *("adana", "dana-mk4", "dana-star", "dana-star-mk4", "adamw-decaying-wd"),
    *("ademamix", "auto-dana", "dana", "sign-dana"),
)
MODULE = "danalab.optim.step.backends.triton_kernel"
SHAPES = [(33, 32), (), (0, 3)]
"""A full block and one that is not, a number, nothing."""
CPU = torch.device("cpu")
DECAY = {"adana": {"omega": None, "horizon": None}}
"""Settings beside an explicit weight decay."""


@pytest.fixture(scope="module", autouse=True)
def interpreted():
    """The kernel as Triton's interpreter runs it; other tests find it as it is on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.delitem(sys.modules, MODULE, raising=False)
        module: ModuleType = importlib.import_module(MODULE)
        patch.setattr(triton_step, "_kernel", lambda: module)
        yield module
        sys.modules.pop(MODULE)


def rule_and_group(name: str, **settings: Any) -> tuple[Rule, dict[str, Any]]:
    if name != "ademamix":
        settings = {"omega": 2.0, "horizon": 100, **settings}
    if "momentum_cooldown" in optimizer_spec(name).settings:
        settings["momentum_cooldown"] = 1.0  # all gains differ
    optimizer: Any = build_optimizer(name, [torch.zeros(1, requires_grad=True)], lr=0.1, **settings)
    group = {**optimizer.param_groups[0], "lr": 0.07}
    return optimizer.rule_of(group), group


def make_batch(rule: Rule, group: dict[str, Any], t: Any, dtype: torch.dtype, seed: int = 0) -> TensorBatch:
    draw = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    params = [torch.randn(shape, generator=draw).to(dtype) for shape in SHAPES]
    grads = [torch.randn(shape, generator=draw).to(dtype) for shape in SHAPES]
    moments = [
        [torch.randn(shape, generator=draw).to(wide), *(torch.rand(shape, generator=draw).to(wide) for _ in rest)]
        for shape in SHAPES
        for rest in [rule.moments[1:]]
    ]
    return TensorBatch(group, t, None, params, grads, moments, list(range(len(SHAPES))))


def exact(rule: Rule, batch: TensorBatch, t: int, i: int) -> list[Tensor]:
    """Parameter i of the batch after the reference in float64."""
    tensors = [x.double() for x in (batch.params[i], batch.grads[i], *batch.moments[i])]
    if batch.group["maximize"]:
        tensors[1] = -tensors[1]
    return list(rule.update(*tensors, **rule.scalars(batch.settings, t)))


def assert_updates(rule: Rule, batch: TensorBatch, counts: list[int]) -> None:
    want = [exact(rule, batch, t, i) for i, t in enumerate(counts)]
    triton_step.fused(rule, [batch])
    for i, (p, *moments) in enumerate(want):
        dtype = batch.params[i].dtype
        near = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 5e-6, "atol": 2e-6}
        rounded = near if dtype.itemsize >= 4 else {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2e-6}
        torch.testing.assert_close(batch.params[i].double(), p, **rounded)
        for found, expected in zip(batch.moments[i], moments, strict=True):
            torch.testing.assert_close(found.double(), expected, **near)


CASES = [
    *[(name, torch.float32) for name in NAMES],
    *[(name, torch.bfloat16) for name in ("adana", "dana-star-mk4")],
    ("dana-star-mk4", torch.float64),
]
OTHERS = [
    pytest.param(name, dtype, marks=pytest.mark.slow)
    for name in NAMES
    for dtype in (torch.float64, torch.bfloat16, torch.float16)
    if (name, dtype) not in CASES
]


@pytest.mark.parametrize(("name", "dtype"), [*CASES, *OTHERS], ids=str)
def test_a_launch_updates_all_parameters_as_the_reference_in_float64(name, dtype):
    rule, group = rule_and_group(name)
    assert_updates(rule, make_batch(rule, group, 7, dtype), [7] * len(SHAPES))


@pytest.mark.parametrize("name", ["dana-mk4", "dana-star-mk4", "auto-dana"])
def test_parameters_with_their_own_step_counts_on_the_device_have_their_own_scalars(name):
    rule, group = rule_and_group(name, capturable=True)
    counts = [1, 50, 3]
    batch = make_batch(rule, group, torch.tensor(counts).double(), torch.float32)
    assert_updates(rule, batch, counts)


@pytest.mark.parametrize("name", ["adana", "dana-star-mk4", "auto-dana"])
def test_the_momentum_has_the_age_of_its_path_and_its_share_of_the_gradient(name):
    rule, group = rule_and_group(name)
    memory = {"momentum_cooldown": 0.0, "age": "follow(8, 3, 1, 1)", "fresh": 0.2}
    batch = make_batch(rule, {**group, **memory}, 7, torch.float32)
    batch.ages = (2.0, 2.5)
    assert rule.scalars(batch.settings, 7)["gain"] == 1 - 2.5 / 3
    assert_updates(rule, batch, [7] * len(SHAPES))


def test_the_learning_rate_may_be_a_tensor():
    rule, group = rule_and_group("adana", capturable=True)
    batch = make_batch(rule, {**group, "lr": torch.tensor(0.02)}, torch.full((3,), 9.0).double(), torch.float32)
    assert_updates(rule, batch, [9] * 3)


@pytest.mark.parametrize("name", ["adana", "ademamix"])
def test_cautious_decay_spares_coordinates_that_move_away_from_zero(name):
    rule, group = rule_and_group(name, cautious_decay=True, weight_decay=0.2, **DECAY.get(name, {}))
    assert_updates(rule, make_batch(rule, group, 3, torch.float32), [3] * len(SHAPES))


def test_maximize_takes_the_other_direction():
    rule, group = rule_and_group("dana-star", maximize=True)
    assert_updates(rule, make_batch(rule, group, 3, torch.float32), [3] * len(SHAPES))


@pytest.mark.parametrize("skip", [True, False])
def test_a_step_that_is_skipped_on_the_device_changes_nothing(skip):
    rule, group = rule_and_group("dana-star-mk4", capturable=True)
    batch = make_batch(rule, group, torch.ones(3).double(), torch.float32)
    batch.skip = torch.tensor(skip)
    batch.grads[0][0] = float("nan")
    before = [x.clone() for x in (*batch.params, *(m for own in batch.moments for m in own))]
    triton_step.fused(rule, [batch])
    after = [*batch.params, *(m for own in batch.moments for m in own)]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True)) is skip


def test_a_gradient_that_is_not_finite_loses_its_own_coordinate_only():
    for name in ("dana-mk4", "dana-star-mk4", "auto-dana"):
        rule, group = rule_and_group(name)
        batch = make_batch(rule, group, 3, torch.float32)
        batch.grads[0][0, 7], batch.grads[0][0, 8] = float("nan"), float("inf")
        triton_step.fused(rule, [batch])
        assert batch.params[0][0, 7].isnan()
        assert batch.params[0].isfinite().sum() == 33 * 32 - 2


def test_tensors_in_another_order_are_copied():
    rule, group = rule_and_group("adana")
    batch = make_batch(rule, group, 3, torch.float32)
    batch.grads[0] = batch.grads[0].t().contiguous().t()
    batch.params[0] = torch.randn(33, 64)[:, ::2]
    assert_updates(rule, batch, [3] * len(SHAPES))


def test_random_rounding_is_that_of_the_other_back_ends():
    rule, group = rule_and_group("adana", stochastic_rounding=True)
    ours, others = (make_batch(rule, group, 3, torch.bfloat16) for _ in range(2))
    triton_step.fused(rule, [ours])
    choice.eager(rule, [others])
    for p, q in zip(ours.params, others.params, strict=True):
        assert (p != q).sum() <= 2  # a last bit of float32 may decide


def test_addresses_are_uploaded_when_one_has_changed():
    table = triton_step.AddressTable()
    first = table.upload([16, 32, 48], CPU, spare=False)
    assert first.tolist() == [16, 32, 48]
    assert table.is_aligned
    assert table.upload([16, 32, 48], CPU, spare=False) is first
    again = table.upload([16, 36, 48], CPU, spare=False)
    assert again.tolist() == [16, 36, 48]
    assert not table.is_aligned


def test_new_gradients_are_found_at_their_own_addresses():
    rule, group = rule_and_group("adana")
    batch = make_batch(rule, group, 3, torch.float32)
    triton_step.fused(rule, [batch])
    kept = batch.grads
    batch.grads = [-g for g in kept]
    assert_updates(rule, batch, [3] * len(SHAPES))


@pytest.mark.compiled
@pytest.mark.parametrize("memory", [{}, {"age": "follow(8, 0.5, 1, 0.1)", "fresh": 0.2}], ids=["own", "age"])
@pytest.mark.parametrize("capturable", [False, True])
def test_a_repeated_step_is_the_one_that_would_have_been_prepared_anew(capturable, memory):
    class Launched(DanaMK4):
        def backend_of(self, rule, batch):
            return triton_step.fused

    finished, repeated = [], []
    for cls in (Launched, DanaMK4):
        draw = torch.Generator().manual_seed(0)
        params = [torch.randn(shape, generator=draw).requires_grad_() for shape in ((9, 5), (7,))]
        optimizer = cls(params, lr=0.1, omega=2.0, horizon=100, capturable=capturable, foreach=False, **memory)
        for step in range(6):
            for p in params:
                p.grad = torch.randn(p.shape, generator=draw)
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            before = optimizer._plan
            optimizer.step(found_nonfinite=torch.tensor(step == 3) if capturable else None)
            repeated.append(before is not None and optimizer._plan is before)
        finished.append(torch.cat([p.detach().flatten() for p in params]))
    torch.testing.assert_close(*finished, rtol=1e-5, atol=1e-6)
    assert repeated == [False, *[True] * 5, *[False] * 6]


def test_the_kernel_is_compared_with_the_reference_before_it_is_used(monkeypatch, caplog):
    rule, group = rule_and_group("adana")
    assert triton_step.agrees(rule, group, CPU)
    monkeypatch.setattr(triton_step, "fused", lambda rule, batches: None)
    with caplog.at_level(logging.WARNING):
        assert not triton_step.agrees(rule, group, CPU)
    assert "differs from the reference" in caplog.text

    def broken(rule, batches):
        raise RuntimeError("no compiler\nmore")

    monkeypatch.setattr(triton_step, "fused", broken)
    with caplog.at_level(logging.WARNING):
        assert not triton_step.agrees(rule, group, CPU)
    assert caplog.messages[-1].endswith("no compiler")


def test_a_gpu_that_can_run_the_kernel_does_so_by_default_and_with_fused(monkeypatch):
    default = {"fused": None, "foreach": None, "capturable": False}
    monkeypatch.setattr(triton_step, "can_run", lambda rule, group: True)
    for flags in ({}, {"fused": True}, {"capturable": True}):
        assert choice.choose_backend(ADANA, {**default, **flags}, "cuda") is triton_step.fused
    assert choice.choose_backend(ADANA, {**default, "fused": False}, "cuda") is choice.foreach
    assert choice.choose_backend(ADANA, {**default, "foreach": False}, "cuda") is choice.eager
    assert choice.choose_backend(ADANA, {**default, "foreach": True}, "cuda") is choice.foreach
    monkeypatch.setattr(triton_step, "can_run", lambda rule, group: False)
    assert choice.choose_backend(ADANA, {**default, "fused": True}, "cuda") is choice.compiled


def test_fused_on_a_gpu_without_triton_is_refused(monkeypatch):
    monkeypatch.setattr(triton_step, "is_installed", lambda: False)
    with pytest.raises(choice.UserError, match="needs Triton"):
        choice.require_backend("ADana", ADANA, {"fused": True, "foreach": None, "capturable": False}, ["cuda"])
    assert not triton_step.can_run(ADANA, ADana([torch.zeros(1)]).param_groups[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # the interpreter multiplies no bfloat16
@pytest.mark.parametrize(("size", "inner"), [(1, 1), (64, 32), (70, 50), (200, 33)])
def test_a_symmetric_product_is_mirrored_and_reads_any_strides(size, inner, dtype):
    draw = torch.Generator().manual_seed(size)
    x = torch.randn(2, inner, size, generator=draw).to(dtype).mT
    out = torch.full((2, size, size), float("nan"), dtype=dtype)
    symmetric.launch(x, x.mT, out)
    want = x.double() @ x.double().mT
    assert torch.equal(out, out.mT)
    torch.testing.assert_close(out.double(), want, rtol=2 * torch.finfo(dtype).eps, atol=1e-5 * inner)


def test_the_product_of_torch_is_used_where_the_kernels_differs(monkeypatch, caplog):
    monkeypatch.setattr(triton_step, "is_installed", lambda: True)
    monkeypatch.setattr(torch, "randn", partial(_on_cpu, torch.randn))
    symmetric._kernel_agrees.cache_clear()
    assert symmetric._kernel_agrees(torch.float16, 0)
    monkeypatch.setattr(symmetric, "launch", lambda left, right, out: out.fill_(1))
    symmetric._kernel_agrees.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not symmetric._kernel_agrees(torch.float16, 0)
    assert "differs from torch's product" in caplog.text
    symmetric._kernel_agrees.cache_clear()


def _on_cpu(make, *args, device, **kwargs):
    return make(*args, **kwargs)
