"""What a resonance model has on demand: a table of positions."""

from __future__ import annotations

import json

import pytest
import torch

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.scaling import flops_per_token, parameter_count
from decoding import greedy

SIZES = ("resonance", 32, 2, 4, 8, 64, 61, 40)
SETTINGS = {"table": {"learned_positions": True}}


def config(**settings):
    return ModelConfig(*SIZES, num_frequencies=8, **settings)


def random_tokens(*shape, seed=0):
    return torch.randint(61, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
class TestEach:
    def test_the_formula_counts_what_is_built_and_every_weight_learns(self, settings):
        shape, row = config(**settings), random_tokens(2, 41)
        model = build_model(shape)
        more = 40 * 32 * bool(settings.get("learned_positions"))
        assert model.num_parameters() == parameter_count(shape) == parameter_count(config()) + more
        assert flops_per_token(shape, 40) == flops_per_token(config(), 40)  # products only
        model(row[:, :-1], row[:, 1:])[0].backward()
        assert all(p.grad is not None and p.grad.any() for p in model.parameters())

    @torch.no_grad()
    def test_no_logit_depends_on_a_later_token(self, settings):
        model, tokens = build_model(config(**settings), dtype=torch.float64), random_tokens(2, 33)
        logits = model(tokens)
        for place in (0, 1, 3, 16, 32):
            other = tokens.clone()
            other[:, place] = (other[:, place] + 1) % 61
            changed = model(other) - logits
            assert changed[:, :place].abs().sum() <= 1e-9
            assert (model(tokens[:, : place + 1]) - logits[:, : place + 1]).abs().max() <= 1e-9

    @torch.no_grad()
    def test_any_cut_of_the_text_gives_the_same_hidden_states(self, settings):
        model, tokens = build_model(config(**settings), dtype=torch.float64), random_tokens(3, 40)
        whole, cache = model.hidden(tokens), model.new_cache()
        parts = [model.hidden(piece, cache) for piece in tokens.split([1, 1, 7, 1, 1, 1, 20, 8], dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)

    def test_decoding_is_the_model_itself(self, settings):
        model, prompt = build_model(config(**settings), dtype=torch.float64), random_tokens(1, 5)[0].tolist()
        text = greedy(model, prompt, 35)
        row = torch.tensor([prompt + text])
        assert len(text) == 35
        assert model(row)[0, len(prompt) - 1 : -1].argmax(-1).tolist() == text

    def test_checkpointing_changes_no_gradient_and_bfloat16_little(self, settings):
        row, gradients = random_tokens(2, 30), []
        for mode in ("none", "full", "selective"):
            model = build_model(config(**settings))
            model.set_activation_checkpointing(mode)
            model(row[:, :-1], row[:, 1:])[0].backward()
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        for other in gradients[1:]:
            torch.testing.assert_close(other, gradients[0], rtol=0, atol=1e-7)
        logits = model(row)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(model(row).float(), logits, rtol=0, atol=0.1)


@torch.no_grad()
def test_a_table_tells_where_in_the_row_a_token_stands():
    row = torch.full((1, 40), 7)
    embedded, _ = build_model(config(learned_positions=True))._embed(row, 0, None)
    assert (embedded[0, 1:] - embedded[0, :-1]).abs().amax(1).min() > 0


def test_text_longer_than_the_table_is_refused():
    model = build_model(config(learned_positions=True))
    with pytest.raises(UserError, match="41 tokens are more than the model's seq_len 40"):
        model(random_tokens(1, 41))
    cache = model.new_cache()
    model.hidden(random_tokens(1, 40), cache)
    with pytest.raises(UserError, match="seq_len 40"):
        model.hidden(random_tokens(1, 1), cache)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"learned_positions": True, "seq_len": 32769},
            "at most 32768 rows, but the context length is 32769",
        ),
        ({"num_frequencies": 4, "mixer": "none"}, "where --mixer none has no oscillators"),
        ({"num_frequencies": 4, "arch": "enoki"}, "is for resonance, not enoki"),
        ({"learned_positions": True, "arch": "llama"}, "is for resonance, not llama"),
        ({"learned_positions": True, "arch": "gpt"}, "is for resonance, not gpt"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings, message):
    names = ("arch", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "vocab_size", "seq_len")
    with pytest.raises(UserError, match=message):
        ModelConfig(**{**dict(zip(names, SIZES, strict=True)), **settings})


def test_the_plan_counts_it_and_says_so(capsys):
    shape = ["--arch", "resonance", "--size", "small", "--seq-len", "32768"]
    settings = ["--learned-positions"]
    assert main(["plan", *shape, "--json", *settings]) == 0
    more = 32768 * 512
    assert json.loads(capsys.readouterr().out)["exact_params"] == 48_641_536 + more
    assert main(["plan", *shape, *settings]) == 0
    assert "oscillators a channel" in capsys.readouterr().out
    assert main(["plan", *shape[:-1], "40000", *settings]) == 2
    assert "at most 32768 rows" in capsys.readouterr().err
