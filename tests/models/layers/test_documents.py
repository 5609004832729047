"""Rows of several documents: each by itself, whatever its neighbours are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.models.layers import attention as attention_module
from danalab.models.layers.attention import attend_within_documents, document_positions, document_starts

START = 9


def _model(arch: str = "enoki", **changes) -> torch.nn.Module:
    heads = {"enoki": (4, 16), "qwen3": (2, 32), "gpt": (4, 16), "llama": (2, 32)}[arch]
    config = ModelConfig(arch, 64, 2, *heads, 128, 64, 32, **changes)
    return build_model(config, seed=0, dtype=torch.float64)


def test_documents_and_positions_begin_at_each_start_token():
    starts = document_starts(torch.tensor([[1, 2, 9, 3, 4, 9, 9, 5], [9, 1, 2, 3, 4, 5, 6, 7]]), START)
    assert starts.tolist() == [[0, 0, 2, 2, 2, 5, 6, 6], [0] * 8]
    assert document_positions(starts).tolist() == [[0, 1, 0, 1, 2, 0, 0, 1], list(range(8))]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_attention_by_blocks_is_attention_under_one_mask(length, batch, block, grouped, as_compiled, seed):
    draw = torch.Generator().manual_seed(seed)
    heads = (4, 2 if grouped else 4, 2 if grouped else 4)
    leaves = [
        torch.randn(batch, n, length, 8, generator=draw, dtype=torch.float64).requires_grad_() for n in heads
    ]
    starts = document_starts(torch.randint(5, 10, (batch, length), generator=draw), START)
    place = torch.arange(length)
    mask = (place <= place[:, None]) & (place >= starts[:, :, None])
    want = F.scaled_dot_product_attention(*leaves, mask[:, None], enable_gqa=grouped)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_module, "DOCUMENT_BLOCK", block)
        patch.setattr(attention_module, "FEW_KEYS", seed % 30)
        if as_compiled:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
        found = attend_within_documents(*leaves, starts, grouped=grouped)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
    weight = torch.randn(want.shape, generator=draw, dtype=torch.float64)
    for ours, theirs in zip(*(torch.autograd.grad(y, leaves, weight) for y in (found, want)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_no_layer_keeps_a_mask_of_the_whole_row(monkeypatch):
    monkeypatch.setattr(attention_module, "DOCUMENT_BLOCK", 8)
    monkeypatch.setattr(attention_module, "FEW_KEYS", 16)
    length = 64
    model = build_model(ModelConfig("enoki", 32, 2, 2, 16, 32, 64, length))
    model.document_token = START
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        model(torch.randint(0, 64, (1, length))).sum().backward()
    assert kept
    assert max(x.shape[-2:].numel() for x in kept if x.ndim == 4) < length * length


@pytest.mark.parametrize("block", [attention_module.DOCUMENT_BLOCK, 4])
@pytest.mark.parametrize("arch", ["enoki", "qwen3", "gpt", "llama"])
def test_logits_of_a_document_are_those_of_the_document_alone(arch, block, monkeypatch):
    monkeypatch.setattr(attention_module, "DOCUMENT_BLOCK", block)
    model = _model(arch)
    draw = torch.Generator().manual_seed(0)
    lengths = [5, 1, 12, 7]
    documents = [
        torch.cat([torch.tensor([START]), torch.randint(10, 64, (n,), generator=draw)]) for n in lengths
    ]
    alone = [model(document[None])[0] for document in documents]
    model.document_token = START
    together = model(torch.cat(documents)[None])[0].split([n + 1 for n in lengths])
    for one, part in zip(alone, together, strict=True):
        torch.testing.assert_close(part, one, rtol=0, atol=1e-12)


def test_without_it_neighbours_do_change_the_logits():
    model = _model()
    tokens = torch.tensor([[START, 20, 21, START, 30, 31]])
    assert not torch.allclose(model(tokens)[0, 3:], model(tokens[:, 3:])[0])


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_gradients_are_the_same_under_activation_checkpointing(mode, monkeypatch):
    monkeypatch.setattr(attention_module, "DOCUMENT_BLOCK", 8)
    tokens = torch.randint(0, 64, (2, 20), generator=torch.Generator().manual_seed(1))
    grads = []
    for checkpointing in ("none", mode):
        model = _model()
        model.document_token = START
        model.set_activation_checkpointing(checkpointing)
        model(tokens, tokens)[0].backward()
        grads.append([p.grad for p in model.parameters()])
    for plain, saved in zip(*grads, strict=True):
        torch.testing.assert_close(plain, saved, rtol=0, atol=1e-12)


def test_decoding_from_a_cache_is_refused_while_it_is_set():
    model = _model()
    model.document_token = START
    with pytest.raises(UserError, match="set document_token to None"):
        model.hidden(torch.tensor([[1]]), cache=model.new_cache())
