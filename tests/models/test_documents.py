"""Rows of several documents: each by itself, whatever its neighbours are."""

from __future__ import annotations

import pytest
import torch

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.models.documents import document_mask, documents_of

START = 9


def _model(arch: str = "enoki", **settings) -> torch.nn.Module:
    heads = {"enoki": (4, 16), "qwen3": (2, 32), "gpt": (4, 16), "llama": (2, 32)}[arch]
    config = ModelConfig(arch, 64, 2, *heads, 128, 64, 32, **settings)
    return build_model(config, seed=0, dtype=torch.float64)


def test_documents_and_positions_begin_at_each_start_token():
    document, position = documents_of(torch.tensor([[1, 2, 9, 3, 4, 9, 9, 5], [9, 1, 2, 3, 4, 5, 6, 7]]), START)
    assert document.tolist() == [[0, 0, 1, 1, 1, 2, 3, 3], [1] * 8]
    assert position.tolist() == [[0, 1, 0, 1, 2, 0, 0, 1], list(range(8))]


def test_the_mask_is_causal_and_block_diagonal():
    mask = document_mask(torch.tensor([[0, 0, 1, 1]]))[0, 0].int()
    assert mask.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("arch", ["enoki", "qwen3", "gpt", "llama"])
def test_logits_of_a_document_are_those_of_the_document_alone(arch):
    model = _model(arch)
    draw = torch.Generator().manual_seed(0)
    lengths = [5, 1, 12, 7]
    documents = [torch.cat([torch.tensor([START]), torch.randint(10, 64, (n,), generator=draw)]) for n in lengths]
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
def test_gradients_are_the_same_under_activation_checkpointing(mode):
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
        model.hidden(torch.tensor([[1]]), cache=model.new_cache(1))
