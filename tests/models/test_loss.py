"""The chunked loss equals the plain one in every use, and never makes all logits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from danalab.errors import UserError
from danalab.models import loss
from danalab.models.loss import chunked_cross_entropy, hoyer_penalty


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loss, "_CPU_ROWS", 4)
    monkeypatch.setattr(loss, "_CPU_ENTRIES", 4 * 64)


def _case(
    rows: int = 11, dim: int = 6, vocab: int = 64, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(1, rows, dim, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocab, dim, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(0, vocab, (1, rows), generator=generator)
    targets[:, ::3] = -1
    return hidden, weight, targets


def _plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.T
    ce = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-1)
    return ce, logits.logsumexp(-1).square().mean()


def _both(
    total: object, dtype: torch.dtype = torch.float64, z_loss: float = 0.0, **sizes: int
) -> list[list[Tensor]]:
    """Gradients of `total(ce, lse2)` by the chunked and by the plain way."""
    hidden, weight, targets = _case(dtype=dtype, **sizes)
    results = []
    for pair in (chunked_cross_entropy(hidden, weight, targets, z_loss), _plain(hidden, weight, targets)):
        results.append(list(torch.autograd.grad(total(*pair), [hidden, weight])))  # pyright: ignore
    return results


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 13), dim=st.integers(1, 5), vocab=st.integers(2, 64), z_loss=st.sampled_from([0.0, 1e-4, 0.3]),
    seed=st.integers(0, 99), double=st.booleans(),
)  # fmt: skip
def test_values_and_gradients_equal_the_plain_loss(
    rows: int, dim: int, vocab: int, z_loss: float, seed: int, double: bool
):
    hidden, weight, targets = _case(rows, dim, vocab, torch.float64 if double else torch.float32, seed)
    targets[0, 0] = 0
    ce, lse2 = chunked_cross_entropy(hidden, weight, targets, z_loss)
    got = torch.autograd.grad(ce + z_loss * lse2, [hidden, weight])
    plain_ce, plain_lse2 = _plain(hidden, weight, targets)
    want = torch.autograd.grad(plain_ce + z_loss * plain_lse2, [hidden, weight])
    tight = 1e-12 if double else 1e-6
    torch.testing.assert_close((ce, lse2), (plain_ce, plain_lse2), rtol=tight, atol=tight)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12 if double else 1e-5)


@pytest.mark.parametrize(
    ("z_loss", "total"),
    [
        (0.1, lambda ce, lse2: ce + 0.1 * lse2),
        (0.1, lambda ce, lse2: -7.0 * (ce + 0.1 * lse2)),
        (0.1, lambda ce, lse2: ce),
        (0.1, lambda ce, lse2: lse2),
        (0.1, lambda ce, lse2: ce + 0.2 * lse2),
        (0.1, lambda ce, lse2: 0.0 * ce + 0.0 * lse2),
        (0.0, lambda ce, lse2: ce),
        (0.0, lambda ce, lse2: ce + 0.0 * lse2),
        (0.0, lambda ce, lse2: ce + 0.5 * lse2),
        (0.0, lambda ce, lse2: ce.exp() * lse2),
    ],
    ids=[
        "foreseen",
        "scaled",
        "ce only",
        "z only",
        "other ratio",
        "zero",
        "no z",
        "zero z",
        "unforeseen z",
        "product",
    ],
)
def test_gradients_are_exact_whatever_is_made_of_the_two_results(z_loss: float, total: object):
    got, want = _both(total, z_loss=z_loss)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


def test_what_was_foreseen_costs_one_pass_and_no_more(monkeypatch: pytest.MonkeyPatch):
    calls = []
    real = loss._forward_backward_rows
    monkeypatch.setattr(loss, "_forward_backward_rows", lambda *args: calls.append(1) or real(*args))
    _both(lambda ce, lse2: 3 * (ce + 1e-4 * lse2), z_loss=1e-4)
    assert len(calls) == 1
    _both(lambda ce, lse2: ce, z_loss=1e-4)
    assert len(calls) == 3


def test_a_second_backward_gives_the_same_gradients():
    hidden, weight, targets = _case()
    ce, lse2 = chunked_cross_entropy(hidden, weight, targets, 0.1)
    total = ce + 0.1 * lse2
    first = [grad.clone() for grad in torch.autograd.grad(total, [hidden, weight], retain_graph=True)]
    second = torch.autograd.grad(total, [hidden, weight])
    torch.testing.assert_close(list(second), first, rtol=1e-12, atol=1e-14)


def test_micro_batches_with_common_counts_add_up_to_the_whole_batch():
    hidden, weight, targets = _case(rows=12)
    n_valid = int((targets != -1).sum())

    def total(rows: slice, **counts: int) -> Tensor:
        ce, lse2 = chunked_cross_entropy(hidden[:, rows], weight, targets[:, rows], 1e-2, **counts)
        return ce + 1e-2 * lse2

    whole = torch.autograd.grad(total(slice(None)), [hidden, weight])
    hidden.grad = weight.grad = None
    for rows in (slice(0, 5), slice(5, 6), slice(6, 12)):
        total(rows, valid_count=n_valid, position_count=12).backward()
    torch.testing.assert_close([hidden.grad, weight.grad], list(whole), rtol=1e-12, atol=1e-14)


def test_counts_may_be_tensors():
    hidden, weight, targets = _case()
    numbers = chunked_cross_entropy(hidden, weight, targets, valid_count=5, position_count=9)
    tensors = chunked_cross_entropy(
        hidden, weight, targets, valid_count=torch.tensor(5), position_count=torch.tensor(9.0)
    )
    torch.testing.assert_close(numbers, tensors, rtol=0, atol=0)


@pytest.mark.parametrize("with_grad", [True, False])
def test_all_targets_ignored_is_zero_and_not_nan(with_grad: bool):
    hidden, weight, targets = _case()
    with torch.set_grad_enabled(with_grad):
        ce, _ = chunked_cross_entropy(hidden, weight, torch.full_like(targets, -1))
    assert ce.item() == 0
    if with_grad:
        ce.backward()
        assert not hidden.grad.any()
        assert not weight.grad.any()


def test_no_grad_computes_the_same_values_and_no_gradients(monkeypatch: pytest.MonkeyPatch):
    hidden, weight, targets = _case()
    with_grad = chunked_cross_entropy(hidden, weight, targets)
    monkeypatch.setattr(loss, "_forward_backward_rows", None)
    with torch.no_grad():
        without = chunked_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(without, tuple(part.detach() for part in with_grad), rtol=1e-14, atol=0)


@pytest.mark.parametrize("frozen", ["head", "hidden"])
def test_what_is_frozen_gets_no_gradient(frozen: str):
    hidden, weight, targets = _case()
    still, moving = (weight, hidden) if frozen == "head" else (hidden, weight)
    want = torch.autograd.grad(_plain(hidden, weight, targets)[0], moving)[0]
    still.requires_grad_(False)
    chunked_cross_entropy(hidden, weight, targets)[0].backward()
    assert still.grad is None
    torch.testing.assert_close(moving.grad, want, rtol=1e-12, atol=1e-14)


def test_another_ignore_index():
    hidden, weight, targets = _case()
    moved = targets.where(targets != -1, -100)
    torch.testing.assert_close(
        chunked_cross_entropy(hidden, weight, moved, ignore_index=-100),
        chunked_cross_entropy(hidden, weight, targets),
        rtol=0, atol=0,
    )  # fmt: skip


def test_huge_logits_do_not_overflow():
    hidden, weight, targets = _case(dtype=torch.float32)
    hidden, weight = (1e4 * hidden).detach().requires_grad_(), weight.detach().requires_grad_()
    ce, _ = chunked_cross_entropy(hidden, weight, targets)
    ce.backward()
    torch.testing.assert_close(ce, _plain(hidden, weight, targets)[0])
    assert hidden.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_products_are_low_but_softmax_and_sums_are_float32(dtype: torch.dtype):
    # 40 chunks and 1/160 of each row: added up, or scaled, in half precision this would be far off.
    hidden, weight, targets = _case(rows=160, dtype=torch.float32)
    want_values = _plain(hidden, weight, targets)
    want = torch.autograd.grad(want_values[0] + 1e-4 * want_values[1], [hidden, weight])
    with torch.autocast("cpu", dtype):
        ce, lse2 = chunked_cross_entropy(hidden, weight, targets, 1e-4)
    got = torch.autograd.grad(ce + 1e-4 * lse2, [hidden, weight])
    assert {ce.dtype, lse2.dtype, *(grad.dtype for grad in got)} == {torch.float32}
    torch.testing.assert_close(ce, want_values[0], rtol=2e-3, atol=0)
    for grad, exact in zip(got, want, strict=True):
        torch.testing.assert_close(grad, exact, rtol=0, atol=0.01 * float(exact.abs().max()))


def test_tiny_gradients_survive_float16():
    hidden, weight, targets = _case(rows=40, dtype=torch.float32)
    with torch.autocast("cpu", torch.float16):
        ce, _ = chunked_cross_entropy(hidden, weight, targets, valid_count=1e9)
    grad = torch.autograd.grad(ce, weight)[0]
    want = (
        torch.autograd.grad(_plain(hidden, weight, targets)[0], weight)[0] * int((targets != -1).sum()) / 1e9
    )
    torch.testing.assert_close(grad, want, rtol=0, atol=0.01 * float(want.abs().max()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.tensor([[0, 64]])}, "target id 64 is outside the vocabulary of 64"),
        ({"targets": torch.tensor([[0, -2]])}, "target id -2 is outside"),
        ({"targets": torch.tensor([[0, 1, 2]])}, r"got \[1, 2, 6\], \[64, 6\] and torch.int64 \[1, 3\]"),
        ({"targets": torch.tensor([[0.0, 1.0]])}, "torch.float32"),
        ({"weight": torch.zeros(64, 5)}, r"\[64, 5\]"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Tensor], message: str):
    inputs = {"hidden": torch.zeros(1, 2, 6), "weight": torch.zeros(64, 6), "targets": torch.tensor([[0, 1]])}
    inputs.update(change)
    with pytest.raises(UserError, match=message):
        chunked_cross_entropy(inputs["hidden"], inputs["weight"], inputs["targets"])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [pytest.param(512, marks=pytest.mark.slow), 1024])
def test_peak_memory_is_at_most_a_quarter_of_the_plain_loss(monkeypatch: pytest.MonkeyPatch, rows: int):
    monkeypatch.undo()  # the real chunks
    hidden, weight, targets = _case(rows, dim=8, vocab=50304, dtype=torch.float32)

    def peak(way: Callable[..., tuple[Tensor, Tensor]], *settings: float) -> int:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            ce, lse2 = way(hidden, weight, targets, *settings)
            torch.autograd.grad(ce + 1e-4 * lse2, [hidden, weight])
        used, highest = 0, 0
        for event in profiler.profiler.kineto_results.events():
            if event.name() == "[memory]":
                used += event.nbytes()
                highest = max(highest, used)
        return highest

    ours, plain = peak(chunked_cross_entropy, 1e-4), peak(_plain)
    assert 0 < ours <= plain / 4, f"{ours} against {plain} bytes"


def test_hoyer_penalty_counts_active_features():
    one_hot, flat = torch.eye(16)[:1], torch.ones(1, 16)
    assert hoyer_penalty(one_hot).item() == pytest.approx(1)
    assert hoyer_penalty(flat).item() == pytest.approx(math.sqrt(16))
