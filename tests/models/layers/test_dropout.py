"""Dropout acts in training passes only, keeps the mean, and has the same masks under activation checkpointing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from danalab.models.layers.basic import dropout

TOKENS = torch.arange(48).view(3, 16) % 31


def model(arch: str = "enoki", dropout: float = 0.3) -> Decoder:
    return build_model(ModelConfig(arch, 16, 2, 2, 8, 32, 31, 16, dropout=dropout))


@pytest.mark.parametrize("arch", ["enoki", "gpt", "qwen3", "resonance"])
def test_it_changes_training_passes_and_nothing_else(arch: str):
    with_dropout, without = model(arch), model(arch, 0.0)
    assert not torch.equal(with_dropout(TOKENS), with_dropout(TOKENS))
    with torch.no_grad():
        torch.testing.assert_close(with_dropout(TOKENS), without(TOKENS), rtol=0, atol=0)
    torch.testing.assert_close(with_dropout.eval()(TOKENS), without(TOKENS), rtol=0, atol=0)


def test_features_are_dropped_with_the_probability_and_keep_their_mean():
    x = dropout(torch.ones(200_000), 0.25, training=True)
    assert x.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert float((x == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert float(x.mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputed_activations_have_the_same_masks(mode: str):
    found = []
    for checkpointing in ("none", mode):
        decoder = model()
        decoder.set_activation_checkpointing(checkpointing)
        torch.manual_seed(5)
        decoder(TOKENS, TOKENS)[0].backward()
        found.append([parameter.grad for parameter in decoder.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize("wrong", [-0.1, 1.0, float("nan")])
def test_a_probability_out_of_range_is_refused(wrong: float):
    with pytest.raises(UserError, match="dropout: Input should be"):
        replace(model(dropout=0.0).config, dropout=wrong)
