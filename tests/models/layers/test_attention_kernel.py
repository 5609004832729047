"""The attention kernel for training on CPUs, against float64 and against torch's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from danalab.models import ModelConfig, build_model
from danalab.models.layers import attention_kernel
from danalab.models.layers.attention_kernel import attend_rows, usable

pytestmark = pytest.mark.compiled


def heads(draw, batch, length, count, features):
    return torch.randn(batch, length, count, features, generator=draw).transpose(1, 2).requires_grad_()


def starts_of(batch, length, cuts):
    starts = torch.zeros(batch, length, dtype=torch.long)
    for row, cut in enumerate(sorted(cuts)):
        starts[row % batch, cut % length :] = cut % length
    return starts


def plain(q, k, v, starts):
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    place = torch.arange(q.shape[2])
    mask = (place <= place[:, None]) & (place >= (starts if starts is not None else torch.zeros(1, 1))[:, :, None])
    scores = (q @ k.mT / q.shape[3] ** 0.5).masked_fill(~mask[:, None], -torch.inf)
    return scores.softmax(-1) @ v


@given(
    batch=st.integers(1, 2), kv_heads=st.integers(1, 2), group=st.integers(1, 3), length=st.integers(1, 200),
    features=st.integers(1, 40), cuts=st.none() | st.lists(st.integers(0, 199), max_size=4), seed=st.integers(0, 99),
)  # fmt: skip
def test_outputs_and_gradients_are_those_of_plain_attention(batch, kv_heads, group, length, features, cuts, seed):
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (heads(draw, batch, length, count, features) for count in (kv_heads * group, kv_heads, kv_heads))
    starts = None if cuts is None else starts_of(batch, length, cuts)
    weights = torch.randn(q.shape, generator=draw)
    found = attend_rows(q, k, v, starts)
    expected = plain(q, k, v, starts)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    ours = torch.autograd.grad((found * weights).sum(), (q, k, v))
    theirs = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


def test_a_row_has_the_same_bits_alone_and_with_any_number_of_threads():
    q, k, v = (heads(torch.Generator().manual_seed(1), 3, 150, 2, 24) for _ in range(3))

    def bits(*given):
        y = attend_rows(*given)
        return [y, *torch.autograd.grad(y.square().sum(), given)]

    whole = bits(q, k, v)
    alone = bits(*(x[1:2].detach().requires_grad_() for x in (q, k, v)))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        threads = bits(q, k, v)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a[1:2], b) for a, b in zip(whole, alone, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(whole, threads, strict=True))


def test_a_number_that_is_not_finite_is_not_hidden():
    q, k, v = (heads(torch.Generator().manual_seed(1), 1, 130, 1, 8) for _ in range(3))
    with torch.no_grad():
        k[0, 0, 3] = torch.nan
    y = attend_rows(q, k, v)
    assert y[0, 0, 3:].isnan().all()
    assert y[0, 0, :3].isfinite().all()


def test_there_is_no_second_derivative():
    q, k, v = (heads(torch.Generator().manual_seed(1), 1, 4, 1, 4) for _ in range(3))
    (dq,) = torch.autograd.grad(attend_rows(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


@pytest.mark.parametrize("document_token", [None, 5])
def test_a_model_learns_the_same_with_it(document_token, monkeypatch):
    config = ModelConfig("qwen3", 32, 2, 2, 16, 64, vocab_size=32, seq_len=160, n_kv_heads=1)
    tokens = torch.randint(32, (2, 160), generator=torch.Generator().manual_seed(0))
    used, found = [], []
    for on in (True, False):
        model = build_model(config, seed=0)
        monkeypatch.setattr(
            attention_kernel, "usable", lambda *given, on=on: used.append(on and usable(*given)) or used[-1]
        )
        model.document_token = document_token
        model(tokens).logsumexp(-1).mean().backward()
        found.append([p.grad for p in model.parameters()])
    assert used == [True, True, False, False]
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-6)


def test_it_is_used_for_long_float32_rows():
    def fits(length=150, dtype=torch.float32):
        return usable(*(torch.randn(1, 1, length, 4, dtype=dtype) for _ in range(3)))

    assert fits()
    assert not fits(length=128)
    assert not fits(dtype=torch.float64)
    seen = []
    torch.func.vmap(lambda x: seen.append(usable(x, x, x)) or x)(torch.randn(2, 1, 1, 150, 4))
    assert seen == [False]


def test_without_a_compiler_torchs_attention_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("DANALAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    attention_kernel._library.cache_clear()
    try:
        assert not usable(*(torch.randn(1, 1, 150, 4) for _ in range(3)))
    finally:
        attention_kernel._library.cache_clear()
