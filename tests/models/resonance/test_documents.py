"""Documents in one row are heard each by itself, whatever stands before them and however they are convolved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.models.layers.attention import document_starts
from danalab.models.resonance import convolution
from danalab.models.resonance.convolution import convolve_apart, document_lengths
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig

START = 60


@pytest.fixture
def short(monkeypatch):
    """Few tokens are enough for several sizes of documents, and for documents in convolution."""
    monkeypatch.setattr(convolution, "SHORTEST", 4)
    monkeypatch.setattr(convolution, "MIN_CHUNK", 16)


def model_of(num_frequencies=8, **more):
    shape = ModelConfig("resonance", 32, 2, 4, 8, 48, 61, 128, num_frequencies=num_frequencies, **more)
    return build_model(shape, dtype=torch.float64)


def document(length: int, seed: int = 0) -> torch.Tensor:
    words = torch.randint(START, (length - 1,), generator=torch.Generator().manual_seed(seed))
    return torch.cat([torch.tensor([START]), words])


def test_lengths_are_counted_row_by_row_and_once_for_all_layers():
    starts = document_starts(torch.tensor([[1, 2, 60, 3, 4, 60, 60, 5], [60, 1, 2, 3, 4, 5, 6, 7]]), START)
    assert document_lengths(starts) == [2, 3, 1, 2, 8]
    assert document_lengths(starts) is document_lengths(starts)


@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_documents_of_any_lengths_are_put_back_where_they_were(lengths):
    u = torch.arange(2.0 * sum(lengths)).view(1, -1, 2)
    sums = convolve_apart(u, lengths, lambda each: each.cumsum(1))
    alone = [part.cumsum(1) for part in u.split(lengths, 1)]
    torch.testing.assert_close(sums, torch.cat(alone, 1))


@pytest.mark.parametrize(
    "more",
    [{}, {"learned_positions": True}, {"mixer": "none", "num_frequencies": None}],
    ids=["plain", "positions", "no-mixer"],
)
def test_logits_of_a_document_are_those_of_the_document_alone(more, short):
    model = model_of(**more)
    lengths = [5, 1, 70, 3, 24, 5]
    row = [document(length, seed) for seed, length in enumerate(lengths)]
    alone = [model(each[None])[0] for each in row]
    model.document_token = START
    together = model(torch.cat(row)[None])[0].split(lengths)
    for one, part in zip(alone, together, strict=True):
        torch.testing.assert_close(part, one, rtol=0, atol=1e-9)


def test_what_stands_before_a_document_does_not_matter_and_without_the_mask_it_does(short):
    model, last = model_of(), document(40)
    rows = torch.stack(
        [torch.cat([document(50, 1), last]), torch.cat([document(20, 2), document(30, 3), last])]
    )
    apart = []
    for token in (START, None):
        model.document_token = token
        one, other = model(rows)[:, 50:]
        apart.append((one - other).abs().max())
    assert apart[0] <= 1e-9
    assert apart[1] >= 1e-3


@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_gradients_are_those_of_the_documents_alone(mode, short):
    lengths = [9, 33, 2]
    row = [document(length, seed) for seed, length in enumerate(lengths)]
    model = model_of()
    sum(model(each[None]).sin().sum() for each in row).backward()
    alone = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.document_token = START
    model.set_activation_checkpointing(mode)
    model(torch.cat(row)[None]).sin().sum().backward()
    for one, parameter in zip(alone, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, one, rtol=1e-9, atol=1e-9)


def test_no_token_hears_a_later_one_of_its_document(short):
    model, row = model_of(), torch.cat([document(13), document(60, 1)])[None]
    model.document_token = START
    changed = row.clone()
    changed[0, 40] = (row[0, 40] + 1) % START
    before, after = model(row)[0], model(changed)[0]
    assert (before - after)[:40].abs().max() <= 1e-9
    assert (before - after)[40:].abs().max() >= 1e-3


def test_the_compiler_and_documents_do_not_go_together():
    class Words:
        vocab_size = least_vocab_size = 64
        sequence_length, name, tokenizer_name, eos_id = None, "words", "words", 60

    wanted = {"arch": "resonance", "opt": "adamw", "size": "small", "document_mask": True}
    assert resolve(TrainConfig(**wanted), Words()).document_mask
    with pytest.raises(UserError, match="--compile: not with --document-mask"):
        resolve(TrainConfig(**wanted, compile=True), Words())
