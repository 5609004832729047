"""The resonance model as a language model: causal, honest, able to remember, and the same from a state."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model, load_canonical
from danalab.models.config import SIZES, resonance_sizes
from danalab.scaling import flops_per_token, parameter_count
from decoding import greedy
from models.weights import canonical_arrays


def config(d_model=32, n_layers=2, vocab_size=61, seq_len=300, modes=2, groups=4):
    return ModelConfig(
        "resonance", d_model, n_layers, groups, d_model // groups, 64, vocab_size, seq_len,
        num_frequencies=modes * groups,
    )  # fmt: skip


def random_tokens(*shape, vocab=61, seed=0):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 100, 257])
def test_no_logit_depends_on_a_later_token(length):
    model, tokens = build_model(config(), dtype=torch.float64), random_tokens(2, length)
    logits = model(tokens)
    for place in {0, length // 2, length - 1}:
        other = tokens.clone()
        other[:, place] = (other[:, place] + 1) % 61
        changed = model(other)
        assert (changed - logits)[:, :place].abs().sum() <= 1e-9
        assert (changed - logits)[:, place].abs().max() > 1e-3
        prefix = model(tokens[:, : place + 1])
        assert (prefix - logits[:, : place + 1]).abs().max() <= 1e-9


@pytest.mark.parametrize("length", [40, 1100])
def test_no_gradient_of_a_logit_reaches_a_later_token_also_over_several_chunks(length):
    model = build_model(config(d_model=16, seq_len=1200), dtype=torch.float64)
    kept = []
    model.token_embedding.register_forward_hook(lambda module, inputs, output: kept.append(output))
    logits = model(random_tokens(1, length))
    for place in (0, length // 2, length - 2):
        (gradient,) = torch.autograd.grad(logits[0, place].sum(), kept[0], retain_graph=True)
        assert gradient[0, place + 1 :].abs().max() <= 1e-9
        assert gradient[0, : place + 1].abs().sum(-1).min() > 0


def train(model, batches, lr=3e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.0)
    loss = torch.tensor(0.0)
    for inputs, targets in batches:
        loss = model(inputs, targets)[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


class SeesEverything(nn.Module):
    """The mixer that must be caught: a circular convolution over the whole row, by free weights of its spectrum."""

    def __init__(self, dim, length):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(length // 2 + 1, dim, dtype=torch.complex64) * 0.5)

    def forward(self, u, starts=None):
        return torch.fft.irfft(torch.fft.rfft(u, dim=1) * self.weight, u.shape[1], dim=1)


def loss_on_noise(non_causal, vocab=8, length=16):
    torch.manual_seed(0)
    model = build_model(config(32, 2, vocab, length))
    if non_causal:
        for block in model.blocks:
            block.attention.bank = SeesEverything(32, length)
    rows = (random_tokens(16, length + 1, vocab=vocab, seed=i) for i in range(300))
    train(model, ((row[:, :-1], row[:, 1:]) for row in rows))
    with torch.no_grad():
        test = random_tokens(256, length + 1, vocab=vocab, seed=999)
        return model(test[:, :-1], test[:, 1:])[0].item()


@pytest.mark.slow
def test_nothing_is_learned_from_noise_and_a_mixer_that_sees_the_future_is_caught():
    assert loss_on_noise(non_causal=False) >= math.log(8) - 0.02
    assert loss_on_noise(non_causal=True) < math.log(8) - 0.1


def recall_accuracy(lag, mixing=True, width=32, modes=4, steps=150, lr=1e-2, length=24):
    vocab = 8
    shape = config(width, 2, vocab, length, modes)
    model = build_model(shape if mixing else replace(shape, num_frequencies=None, mixer="none"))

    def batch(seed):
        row = random_tokens(16, length, vocab=vocab, seed=seed)
        targets = row.roll(lag, 1)
        targets[:, :lag] = -1
        return row, targets

    train(model, (batch(seed) for seed in range(steps)), lr)
    inputs, targets = batch(9999)
    with torch.no_grad():
        right = model(inputs).argmax(-1) == targets
    return right[targets >= 0].float().mean().item()


@pytest.mark.slow
def test_the_token_before_is_recalled_and_only_by_way_of_the_oscillators():
    assert recall_accuracy(1) >= 0.99
    assert recall_accuracy(1, mixing=False) < 0.5


@pytest.mark.slow
def test_the_sixteenth_token_before_is_recalled():
    assert recall_accuracy(16, width=64, modes=16, steps=600, lr=5e-3, length=40) >= 0.99


def test_one_batch_is_learned_by_heart():
    row = random_tokens(2, 17)
    model = build_model(config(modes=4))
    assert train(model, [(row[:, :-1], row[:, 1:])] * 60, lr=1e-2) < 0.1


def test_decoding_from_the_state_is_the_model_itself_over_two_hundred_tokens():
    model, prompt = build_model(config(), dtype=torch.float64), random_tokens(1, 20)[0].tolist()
    text = greedy(model, prompt, 200)
    row = torch.tensor([prompt + text])
    assert model(row)[0, len(prompt) - 1 : -1].argmax(-1).tolist() == text


@torch.no_grad()
def test_any_cut_of_the_text_gives_the_same_hidden_states_from_a_state_of_one_size():
    model, tokens = build_model(config(), dtype=torch.float64), random_tokens(3, 40)
    whole = model.hidden(tokens)
    cache, parts, sizes = model.new_cache(), [], set()
    for piece in tokens.split([1, 7, 1, 20, 11], dim=1):
        parts.append(model.hidden(piece, cache))
        sizes.add(sum(state.memory.nbytes for state in cache.states))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
    assert sizes == {2 * 3 * 32 * 2 * 16}


def test_training_begins_near_the_loss_of_a_guess():
    row = random_tokens(4, 65, vocab=2048)
    model = build_model(config(256, 2, vocab_size=2048))
    assert model(row[:, :-1], row[:, 1:])[0] < math.log(2048) + 0.5


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", SIZES)
def test_the_sizes_have_as_many_parameters_as_the_formula_says(size):
    config = ModelConfig("resonance", **resonance_sizes(size), vocab_size=50304, seq_len=2048)
    model = build_model(config, device="meta")
    expected = {
        "small": 48_641_536,
        "medium": 191_143_936,
        "large": 493_368_832,
        "xlarge": 1_024_588_800,
        "small-32k": 77_650_944,
        "large-32k": 841_328_640,
        "xlarge-32k": 4_654_428_160,
    }
    assert model.num_parameters() == parameter_count(config) == expected[size]
    products = sum(
        p.numel() for name, p in model.named_parameters() if model.parameter_kinds()[name] != "vector"
    )
    assert flops_per_token(config, 32768) == 6 * products


def test_every_parameter_gets_a_gradient_and_oscillators_are_not_decayed():
    model, row = build_model(config()), random_tokens(2, 30)
    model(row[:, :-1], row[:, 1:])[0].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    kinds = model.parameter_kinds()
    own = {"nu", "theta", "a", "phi", "d"}
    assert {kinds[name] for name in kinds if name.rsplit(".", 1)[1] in own} == {"vector"}
    assert all(parameter.ndim == 2 for name, parameter in model.named_parameters() if kinds[name] == "matrix")


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_checkpointing_changes_no_gradient(mode):
    row, gradients = random_tokens(2, 30), []
    for checkpointing in ("none", mode):
        model = build_model(config())
        model.set_activation_checkpointing(checkpointing)
        model(row[:, :-1], row[:, 1:])[0].backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


def test_weights_go_out_and_in_under_canonical_names():
    model, other = build_model(config()), build_model(config(), seed=1)
    arrays = canonical_arrays(model)
    assert "layers.0.attention.bank.nu" in arrays
    load_canonical(other, arrays)
    assert torch.equal(model(random_tokens(1, 9)), other(random_tokens(1, 9)))


def test_what_has_no_meaning_here_is_refused():
    with pytest.raises(UserError, match="is for models with attention, not resonance"):
        ModelConfig("resonance", 32, 2, 4, 8, 64, 61, 32, attention_gate=True)
    with pytest.raises(UserError, match="--num-frequencies 6: must be divisible by the 4 groups"):
        ModelConfig("resonance", 32, 2, 4, 8, 64, 61, 32, num_frequencies=6)
    with pytest.raises(UserError, match="--num-frequencies: is for resonance, not enoki"):
        ModelConfig("enoki", 32, 2, 4, 8, 64, 61, 32, num_frequencies=8)
    with pytest.raises(UserError, match="give a size"):
        resonance_sizes()
    with pytest.raises(UserError, match="did you mean 'medium'"):
        resonance_sizes("medum")
    with pytest.raises(UserError, match="--n-heads 8 does not divide --d-model 30"):
        resonance_sizes(d_model=30, n_layers=2)


def test_without_its_mixer_a_model_hears_the_present_token_only_and_is_counted_and_decoded_all_the_same():
    model = build_model(ModelConfig("resonance", 32, 2, 4, 8, 64, 61, 40, mixer="none"), dtype=torch.float64)
    assert model.num_parameters() == parameter_count(model.config)
    row, other = random_tokens(1, 30), random_tokens(1, 30)
    other[:, :29] = 7
    assert torch.equal(model(row)[:, 29], model(other)[:, 29])
    text = greedy(model, row[0].tolist(), 8)
    assert model(torch.tensor([row[0].tolist() + text]))[0, 29:-1].argmax(-1).tolist() == text
    with pytest.raises(UserError, match="--mixer none has no oscillators"):
        ModelConfig("resonance", 32, 2, 4, 8, 64, 61, 32, mixer="none", num_frequencies=8)
    with pytest.raises(UserError, match="is for resonance"):
        ModelConfig("enoki", 32, 2, 4, 8, 64, 61, 32, mixer="none")
    with pytest.raises(UserError, match="'oscillators' or 'none'"):
        ModelConfig("resonance", 32, 2, 4, 8, 64, 61, 32, mixer="nome")
