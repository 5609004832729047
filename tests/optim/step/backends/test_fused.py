"""The fused step: built once, never again for other shapes or settings, and refused where it cannot be had."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import tempfile

import pytest
import torch
from torch._dynamo.utils import counters

from danalab.errors import UserError
from danalab.optim import AdamWDecayingWD, ADana, DanaMK4, DanaStar, DanaStarMK4
from danalab.optim.rules.adana import ADANA
from danalab.optim.step.backends import choice, kernel_library, native

ALL = [ADana, DanaMK4, DanaStar, DanaStarMK4, AdamWDecayingWD]


def params(shapes, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator).to(dtype)
    return made


@pytest.mark.parametrize("cls", ALL)
def test_threads_and_cuts_do_not_change_a_bit(cls):
    shapes = [(5,), (301, 257), (1,), (40_001,), (3, 7)]
    finished = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            made = params(shapes)
            optimizer = cls(made, lr=0.1, fused=True)
            for _ in range(2):
                optimizer.step()
        finally:
            torch.set_num_threads(1)
        finished.append(torch.cat([p.detach().flatten() for p in made]))
    assert torch.equal(finished[0], finished[1])
    assert torch.equal(finished[0], finished[2])


def test_groups_and_dtypes_go_in_one_call(monkeypatch):
    calls = []
    real = kernel_library.library()

    class Spy:
        def adana(self, *args):
            calls.append(args)
            real.adana(*args)

    monkeypatch.setattr(native, "library", Spy)
    wide, narrow = params([(4, 3), (5,)]), params([(6,)], dtype=torch.bfloat16)
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": narrow, "delta": 4.0}]
    want = copy.deepcopy(groups)
    for group, twin in zip(groups, want, strict=True):
        for p, q in zip(group["params"], twin["params"], strict=True):
            q.grad = p.grad.clone()
    ADana(groups, lr=0.1, fused=True).step()
    ADana(want, lr=0.1, fused=False).step()
    assert len(calls) == 1
    for group, twin in zip(groups, want, strict=True):
        for p, q in zip(group["params"], twin["params"], strict=True):
            torch.testing.assert_close(p, q)


@pytest.mark.parametrize("cls", ALL)
def test_gradients_without_memory_or_negated_lazily_are_read_as_their_values(cls):
    made, want = params([(8, 8), (5,)]), params([(8, 8), (5,)])
    fused, eager = cls(made, lr=0.1, fused=True), cls(want, lr=0.1, fused=False)
    for step in range(4):
        for p, q in zip(made, want, strict=True):
            q.grad = torch.randn(q.shape, generator=torch.Generator().manual_seed(step))
            p.grad = torch._neg_view(-q.grad) if step % 2 else q.grad.clone()
            if step == 2:
                q.grad, p.grad = torch.zeros(q.shape), torch._efficientzerotensor(*p.shape)
        fused.step()
        eager.step()
    for p, q in zip(made, want, strict=True):
        torch.testing.assert_close(p, q)


def test_a_parameter_whose_data_was_replaced_is_not_read_by_its_old_shape():
    (p,) = params([(8, 8)])
    optimizer = ADana([p], lr=0.1, fused=True)
    for _ in range(3):
        optimizer.step()
    p.data = p.data[:4]
    p.grad = torch.ones(4, 8)
    with pytest.raises(UserError, match=r"shape \(4, 8\) now"):
        optimizer.step()
    turned, want = params([(8, 8)]), params([(8, 8)])
    optimizers = [ADana(turned, lr=0.1, fused=True), ADana(want, lr=0.1, fused=False)]
    for step in range(6):
        for (q,), one in zip((turned, want), optimizers, strict=True):
            if step == 3:
                q.data = q.data.t()
            q.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
            one.step()
    torch.testing.assert_close(turned[0], want[0])


def test_nonfinite_gradients_stay_where_they_are():
    """The trainer keeps them away; but if one comes, only its own coordinate is lost, and it shows."""
    for cls in ALL:
        (p,) = params([(100,)])
        p.grad[7], p.grad[8] = float("nan"), float("inf")
        cls([p], lr=0.1, fused=True).step()
        assert p[7].isnan()
        assert not p[8].isfinite()
        assert p[9:].isfinite().all()


def test_power_of_the_effective_time_is_accurate_over_a_whole_run():
    """dana-star's T^(1-kappa) is a polynomial in the kernel."""
    for kappa in (0.0, 0.5, 0.85, 1.0):
        for t in (1, 100, 10_000, 3_000_000):
            taus = torch.linspace(0, 1, 997)
            found = []
            for flags in ({"fused": True}, {"fused": False}):
                p = torch.zeros(997, dtype=torch.float32, requires_grad=True)
                optimizer = DanaStar([p], lr=1.0, kappa=kappa, **flags)
                state = optimizer.state[p]
                state["step"].fill_(t - 1)
                state["exp_avg"].fill_(1.0), state["exp_avg_sq"].fill_(1.0), state["tau"].copy_(taus)
                p.grad = torch.ones_like(p)
                optimizer.step()
                found.append(p.detach())
            torch.testing.assert_close(*found, rtol=3e-6, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("capturable", [False, True], ids=["kernel", "graph"])
def test_no_change_of_step_or_setting_compiles_again(capturable):
    made = params([(8, 5), (7,)])
    optimizer = DanaMK4(made, lr=0.1, fused=True, capturable=capturable)
    optimizer.step()
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lr, kappa, delta, clip, decay in ((0.2, 0.7, 5.0, 1.0, 0.0), (0.01, 1.0, 12.0, 3.0, 0.3)):
            group = {"lr": lr, "kappa": kappa, "delta": delta, "clipsnr": clip, "weight_decay": decay, "gamma3": 0.5}
            optimizer.param_groups[0].update(group)
            optimizer.step()
    assert not counters["stats"]
    assert not counters["recompiles"]


@pytest.mark.skipif(" " in tempfile.gettempdir(), reason="torch.compile takes no temporary folder with a space")
def test_graph_equals_the_eager_step_and_another_list_has_a_graph_of_its_own():
    for shapes in ([(8, 5), (7,)], [(3, 3)]):
        finished = []
        for flags in ({"fused": False}, {"fused": True, "capturable": True}):
            made = params(shapes)
            optimizer = DanaMK4(made, lr=0.1, omega=2.0, horizon=100, **flags)
            for _ in range(3):
                optimizer.step()
            finished.append(torch.cat([p.detach().flatten() for p in made]))
        torch.testing.assert_close(*finished, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_graph_skips_a_step_on_the_device():
    (p,) = params([(8, 5)])
    optimizer = DanaMK4([p], lr=0.1, fused=True, capturable=True)
    optimizer.step(found_nonfinite=torch.tensor(False))
    before = p.detach().clone()
    p.grad.fill_(float("nan"))
    optimizer.step(found_nonfinite=torch.tensor(True))
    assert torch.equal(p, before)
    assert optimizer.state[p]["step"] == 1
    assert optimizer.state[p]["exp_avg"].isfinite().all()


@pytest.fixture
def fresh_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DANALAB_CACHE", str(tmp_path / "cache"))
    kernel_library.library.cache_clear()
    choice._kernels_are_available.cache_clear()
    yield tmp_path / "cache"
    kernel_library.library.cache_clear()
    choice._kernels_are_available.cache_clear()


def test_without_a_compiler_fused_is_refused_and_the_choice_falls_on_plain_torch(fresh_cache, monkeypatch, caplog):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"C\+\+ compiler") as caught:
        ADana(params([(2,)]), fused=True)
    assert "\n" not in str(caught.value)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert (
                choice.choose_backend(ADANA, {"fused": None, "foreach": None, "capturable": False}, "cpu")
                is choice.eager
            )
    assert len(caplog.records) == 1


def test_a_compiler_that_fails_is_reported_in_one_line(fresh_cache, monkeypatch, tmp_path):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'kernels.cpp:1: error: no such thing' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(UserError, match="no such thing") as caught:
        ADana(params([(2,)]), fused=True)
    assert "\n" not in str(caught.value)
    assert not list(fresh_cache.glob("*.so"))


@pytest.mark.slow
def test_the_library_is_built_once_and_kept(fresh_cache):
    kernel_library.library()
    (built,) = fresh_cache.glob("optim-*.so")
    made = built.stat().st_mtime_ns
    kernel_library.library.cache_clear()
    kernel_library.library()
    assert built.stat().st_mtime_ns == made


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_cache_folder_that_others_can_write_to_is_refused(fresh_cache, mode):
    fresh_cache.mkdir()
    os.chmod(fresh_cache, mode)
    with pytest.raises(UserError, match="DANALAB_CACHE"):
        kernel_library.library()


def test_a_cache_folder_that_we_create_is_accepted_under_any_umask(fresh_cache):
    before = os.umask(0o002)
    try:
        assert kernel_library.LIBRARY.path().parent == fresh_cache
        assert kernel_library.LIBRARY.path().parent == fresh_cache
    finally:
        os.umask(before)


@pytest.mark.parametrize("fault", ["writable", "link", "owner"])
def test_a_library_that_somebody_else_could_have_written_is_not_loaded(fresh_cache, fault, monkeypatch, tmp_path):
    fresh_cache.mkdir(mode=0o700)
    planted = kernel_library.LIBRARY.path()
    planted.write_text("not even a library: loading it would fail with another message")
    if fault == "writable":
        planted.chmod(0o664)
    elif fault == "link":
        planted.rename(tmp_path / "elsewhere.so")
        planted.symlink_to(tmp_path / "elsewhere.so")
    elif os.getuid() == 0:
        os.chown(planted, 12345, 12345)
    else:
        pytest.skip("only root can give a file to somebody else")
    with pytest.raises(UserError, match=r"others can write|not yours") as caught:
        kernel_library.library()
    assert "\n" not in str(caught.value)


DEFAULTS = {"fused": None, "foreach": None, "capturable": False}


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("flags", "device", "want"),
    [
        ({}, "cpu", native.fused),
        ({"fused": False}, "cpu", choice.eager),
        ({"fused": True}, "cpu", native.fused),
        ({"foreach": True}, "cpu", choice.foreach),
        ({"foreach": False}, "cpu", choice.eager),
        ({}, "cuda", choice.foreach),
        ({"capturable": True}, "cuda", choice.eager),
    ],
)
def test_choice_of_a_back_end(flags, device, want):
    assert choice.choose_backend(ADANA, {**DEFAULTS, **flags}, device) is want


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_rule_with_a_reference_alone_is_stepped_eagerly_and_other_back_ends_are_refused(device):
    bare = dataclasses.replace(ADANA, foreach=None, kernel_scalars=None)
    assert choice.choose_backend(bare, DEFAULTS, device) is choice.eager

    class Bare(ADana):
        rule = bare

    (p,) = params([(1 << 20,)])
    Bare([p], lr=0.1).step()
    for flag in ("fused", "foreach"):
        with pytest.raises(UserError, match=f"leave {flag}=True out"):
            Bare([p], lr=0.1, **{flag: True})


@pytest.mark.parametrize("cls", ALL)
def test_the_share_of_a_parameter_that_a_rank_holds_does_not_show_in_the_result(cls):
    """Ranks of FSDP2 hold parts; with a back end chosen by size, parts and whole would differ in the last bit."""
    finished = []
    for parts in (1, 2):
        whole = params([(1 << 20,)])[0]
        own = [part.detach().clone().requires_grad_() for part in whole.chunk(parts)]
        for p, g in zip(own, whole.grad.chunk(parts), strict=True):
            p.grad = g
            cls([p], lr=0.1).step()
        finished.append(torch.cat([p.detach() for p in own]))
    assert torch.equal(*finished)


@pytest.mark.compiled
def test_a_repeated_step_is_the_step_that_would_have_been_prepared_anew():
    """Gradients come and go, groups and tensors are replaced, state is loaded: every change is noticed."""

    def run(prepare_anew: bool) -> tuple[torch.Tensor, list[bool]]:
        made = params([(5,), (31, 7), (3,), (2, 2)])
        optimizer = DanaStarMK4([{"params": made[:2]}, {"params": made[2:], "delta": 4.0}], lr=0.1)
        repeated = []
        for step in range(24):
            generator = torch.Generator().manual_seed(step)
            for i, p in enumerate(made):
                p.grad = None if i == 2 and step in (4, 5, 9) else torch.randn(p.shape, generator=generator)
            if step == 6:
                optimizer.param_groups[0]["lr"] = 0.03
            if step == 8:
                made[1].data = made[1].data.clone()
            if step == 10:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if step == 12:
                optimizer.state[made[0]]["exp_avg"] = optimizer.state[made[0]]["exp_avg"] * 2
            if step == 14:
                made.append(params([(6,)], seed=9)[0])
                made[-1].grad = torch.randn(6, generator=generator)
                optimizer.add_param_group({"params": [made[-1]], "kappa": 0.5})
            if step == 16:
                made[3].grad = made[3].grad.t()
            if step == 18:
                optimizer.state[made[0]]["step"].fill_(3)
            if step == 20:
                optimizer.param_groups[0]["fused"] = False
            if prepare_anew:
                optimizer._plan = None
            before = optimizer._plan
            optimizer.step()
            repeated.append(before is not None and optimizer._plan is before)
        return torch.cat([p.detach().flatten() for p in made]), repeated

    anew, never = run(True)
    found, repeated = run(False)
    assert torch.equal(found, anew)
    assert not any(never)
    assert [step for step, yes in enumerate(repeated) if yes] == [1, 2, 3, 5, 7, 11, 13, 15, 19]
