"""The gated delta rule: by chunks, from a state, and token by token, it is one function."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from danalab.models.delta_rule import delta_scan_backward, gated_delta_rule, scan_op


def rule_by_definition(q, k, v, g, b, state=None, starts=None):
    """Token by token, for each value head by itself, with a new state matrix each time."""
    batch, length, heads, width = v.shape
    share = heads // k.shape[2]
    state = torch.zeros(batch, heads, k.shape[-1], width, dtype=v.dtype) if state is None else state
    outputs = []
    for t in range(length):
        of_head = []
        for h in range(heads):
            s = state[:, h]
            if starts is not None:
                s = torch.where((starts[:, t] == t)[:, None, None], torch.zeros_like(s), s)
            s = g[:, t, h].exp()[:, None, None] * s
            key, query = k[:, t, h // share], q[:, t, h // share]
            error = v[:, t, h] - torch.einsum("bkv,bk->bv", s, key)
            of_head.append(s + torch.einsum("bk,bv->bkv", key, b[:, t, h, None] * error))
            outputs.append(torch.einsum("bkv,bk->bv", of_head[-1], query))
        state = torch.stack(of_head, 1)
    return torch.stack(outputs, 1).unflatten(1, (length, heads)), state


def problem(
    batch=2, length=20, key_heads=2, share=2, key_dim=8, width=6, forget=0.1, seed=0, dtype=torch.float64
) -> list[Tensor]:
    """q, k, v, g, b."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    q, k = (F.normalize(normal(batch, length, key_heads, key_dim), dim=-1) for _ in "qk")
    heads = key_heads * share
    v, g, b = normal(batch, length, heads, width), normal(batch, length, heads), normal(batch, length, heads)
    return [x.to(dtype) for x in (q, k, v, -forget * F.softplus(g), torch.sigmoid(b))]


def first_state(batch=2, heads=4, key_dim=8, width=6) -> Tensor:
    draw = torch.Generator().manual_seed(5)
    return torch.randn(batch, heads, key_dim, width, generator=draw, dtype=torch.float64)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 40), st.sampled_from([1, 2, 3, 8, 16, 64]), st.integers(1, 2), st.integers(1, 3),
    st.sampled_from([0.0, 1e-3, 0.1, 1.0, 30.0]), st.booleans(), st.integers(0, 2**31),
)  # fmt: skip
def test_chunks_are_the_definition_at_any_length(length, chunk, key_heads, share, forget, continued, seed):
    inputs = problem(2, length, key_heads, share, 4, 3, forget, seed)
    before = first_state(2, key_heads * share, 4, 3) if continued else None
    for found, wanted in zip(
        gated_delta_rule(*inputs, before, chunk=chunk), rule_by_definition(*inputs, before), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("forget", [0.0, 0.01, 1.0, 300.0])
def test_float32_is_close_to_the_definition(length, forget):
    inputs = problem(length=length, forget=forget, dtype=torch.float32)
    wanted = rule_by_definition(*(x.double() for x in inputs), first_state())
    found = gated_delta_rule(*inputs, first_state().float())
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-4)


def test_memories_that_were_wiped_do_not_blur_what_came_after():
    # The sums of g over a chunk would go to -1e6, where float32 cannot tell e^-0.01 from 1.
    q, k, v, g, b = problem(1, 64, 1, 1, forget=0.01, dtype=torch.float32)
    g[:, ::7] = -1e5
    wanted = rule_by_definition(*(x.double() for x in (q, k, v, g, b)))[0]
    torch.testing.assert_close(gated_delta_rule(q, k, v, g, b)[0].double(), wanted, rtol=0, atol=1e-4)


def test_a_key_that_comes_again_and_again_is_no_harm():
    # The system of a chunk then has ones all below its diagonal: powers of it, as in a product form of the inverse,
    # grow to 1e18.
    q, k, v, g, b = problem(1, 128, 1, 1, forget=0.0, dtype=torch.float32)
    k, b = k[:, :1].expand_as(k), torch.ones_like(b)
    found, state = gated_delta_rule(q, k, v, g, b, chunk=64)
    torch.testing.assert_close(state[0, 0].T @ k[0, 0, 0], v[0, -1, 0], rtol=0, atol=1e-5)
    wanted = rule_by_definition(*(x.double() for x in (q, k, v, g, b)))[0]
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-4)


def test_steps_are_the_definition():
    inputs = problem()
    outputs, state = [], first_state()
    for t in range(20):
        o, state = gated_delta_rule(*(x[:, t : t + 1] for x in inputs), state)
        outputs.append(o[:, 0])
    wanted, last = rule_by_definition(*inputs, first_state())
    torch.testing.assert_close(torch.stack(outputs, 1), wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.sampled_from([1, 4, 16]), st.floats(0, 0.5), st.integers(0, 2**31))
def test_documents_are_forgotten_at_once(length, chunk, often, seed):
    inputs = problem(2, length, seed=seed)
    begins = torch.rand(2, length, generator=torch.Generator().manual_seed(seed)) < often
    starts = torch.where(begins, torch.arange(length), 0).cummax(1).values
    for found, wanted in zip(
        gated_delta_rule(*inputs, starts_BT=starts, chunk=chunk),
        rule_by_definition(*inputs, starts=starts),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", [0, 5, 31, 32, 63, 99])
def test_a_later_token_changes_no_bit_of_an_earlier_output(dtype, place):
    inputs = problem(length=100, dtype=dtype)
    changed = [x.clone() for x in inputs]
    for x, other in zip(changed, problem(length=100, seed=1, dtype=dtype), strict=True):
        x[:, place:] = other[:, place:]
    found, again = gated_delta_rule(*inputs)[0], gated_delta_rule(*changed)[0]
    assert torch.equal(found[:, :place], again[:, :place])
    assert not torch.equal(found[:, place], again[:, place])


@pytest.mark.parametrize("length", [1, 17, 32, 64, 70])
def test_a_prefix_has_the_outputs_that_it_has_in_the_whole(length):
    inputs = problem(length=100)
    whole = gated_delta_rule(*inputs)[0][:, :length]
    torch.testing.assert_close(
        gated_delta_rule(*(x[:, :length] for x in inputs))[0], whole, rtol=0, atol=1e-13
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (7, 3), (6, 3)])
def test_gradients_are_those_of_finite_differences(length, chunk):
    leaves = [x.requires_grad_() for x in (*problem(1, length, 1, 2, 3, 2), first_state(1, 2, 3, 2))]
    assert torch.autograd.gradcheck(lambda *x: gated_delta_rule(*x, chunk=chunk), leaves)


def test_gradients_are_the_definitions():
    leaves = [x.requires_grad_() for x in (*problem(length=50), first_state())]
    draw = torch.Generator().manual_seed(9)
    of_both = []
    for rule in (gated_delta_rule, rule_by_definition):
        o, state = rule(*leaves)
        weights = [torch.randn(x.shape, generator=draw.manual_seed(9), dtype=x.dtype) for x in (o, state)]
        of_both.append(torch.autograd.grad((o * weights[0]).sum() + (state * weights[1]).sum(), leaves))
    for ours, theirs in zip(*of_both, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_gradients_stay_finite_where_everything_is_forgotten():
    q, k, v, g, b = (x.requires_grad_() for x in problem(length=70, forget=1e6, dtype=torch.float32))
    gated_delta_rule(q, k, v, g, b)[0].square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v, g, b))


def test_the_scan_is_an_honest_operation_of_torch():
    draw = torch.Generator().manual_seed(0)
    shapes = [(3, 2, 4, 5), (3, 2, 4, 6), (3, 2, 4, 6), (3, 2), (2, 6, 5)]
    args = [torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(scan_op, args, test_utils=checks)
    plain = [x.detach() for x in args]
    back = (plain[0], torch.randn(4, 2, 6, 5).double(), *plain[1:4])
    torch.library.opcheck(delta_scan_backward, back, test_utils=checks)


def test_the_state_stays_bounded_over_thousands_of_tokens():
    q, k, v, g, b = problem(1, 4096, 1, 1, forget=0.0, dtype=torch.float32)
    _, state = gated_delta_rule(q, k, v, g, b)
    assert state.isfinite().all()
    assert state.norm() <= math.sqrt(8) * v.norm(dim=-1).max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_deterministic_kernels_give_the_same_numbers(dtype):
    inputs = problem(length=150, forget=2.0, dtype=dtype)
    want = gated_delta_rule(*inputs)
    torch.use_deterministic_algorithms(True)
    try:
        found = gated_delta_rule(*inputs)
    finally:
        torch.use_deterministic_algorithms(False)
    for x, y in zip(found, want, strict=True):
        torch.testing.assert_close(x, y)
