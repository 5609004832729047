"""qwen3next as a language model: with attention everywhere, and with the delta rule in most layers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model, load_canonical
from danalab.models.delta_rule import DecayGate, GatedDeltaNet, ShortConvolution
from danalab.scaling import flops_per_token, parameter_count
from decoding import greedy
from models.weights import canonical_arrays


def config(n_layers: int = 4, seq_len: int = 260, **more: Any) -> ModelConfig:
    interval = {"full_attention_interval": 4, **more}
    return ModelConfig("qwen3next", 32, n_layers, 2, 16, 48, 61, seq_len, **{"n_experts": 4, **interval})


EVERYWHERE = {"full_attention_interval": None}


def random_tokens(*shape: int, vocab: int = 61, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


# ---- what it is made of ----


def test_three_layers_of_four_have_the_delta_rule_and_chosen_ones_a_dense_mlp():
    model = build_model(config(8, mlp_only_layers=(0,), decoder_sparse_step=2), device="meta")
    assert [isinstance(block.attention, GatedDeltaNet) for block in model.blocks] == [
        True,
        True,
        True,
        False,
    ] * 2
    kinds = [type(block.mlp).__name__ for block in model.blocks]
    assert kinds == ["MLP", "MixtureOfExperts"] * 4


def test_without_an_interval_every_layer_has_attention_and_all_of_a_head_turns():
    model = build_model(config(**EVERYWHERE), device="meta")
    assert not any(isinstance(block.attention, GatedDeltaNet) for block in model.blocks)
    assert model.config.rotated == 16
    assert config().rotated == 4


def test_the_published_model_follows_from_its_attention_and_experts():
    published = ModelConfig(
        "qwen3next", 2048, 48, 16, 256, 5632, 151936, 4096, n_kv_heads=2, full_attention_interval=4,
        n_experts=512, top_k=10, expert_dim=512,
    )  # fmt: skip
    linear = published.linear_attention
    assert linear is not None
    assert (linear.key_heads, linear.value_heads, linear.key_dim, linear.value_dim) == (16, 32, 128, 128)
    assert (linear.conv_size, published.rotated) == (4, 64)
    assert parameter_count(published) == pytest.approx(79.7e9, rel=0.003)
    assert parameter_count(published, active=True) == pytest.approx(3.9e9, rel=0.03)


@pytest.mark.parametrize(
    "more",
    [
        EVERYWHERE,
        {},
        {
            "linear_key_heads": 3,
            "linear_value_heads": 6,
            "linear_key_dim": 5,
            "linear_value_dim": 7,
            "conv_size": 2,
        },
        {"full_attention_interval": 2, "mlp_only_layers": (1, 2), "n_kv_heads": 1, "tied_head": True},
    ],
)
def test_the_number_of_weights_by_formula_is_the_models(more):
    assert build_model(config(**more), device="meta").num_parameters() == parameter_count(config(**more))


@pytest.mark.sample(1)
@pytest.mark.parametrize("more", [EVERYWHERE, {}, {"linear_key_heads": 2, "linear_value_heads": 2}])
def test_compute_by_formula_is_what_torch_counts(more):
    # Products are seen, those of the scan too; the triangular inverse, convolutions and elementwise work are not.
    # On the meta device: on CPUs the counter does not see attention.
    shape = ModelConfig("qwen3next", 64, 4, 2, 32, 96, 128, 128, **{"full_attention_interval": 4, **more})
    model, tokens = build_model(shape, device="meta"), torch.zeros(2, 128, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    assert counter.get_total_flops() == pytest.approx(2 * 128 * flops_per_token(shape, 128), rel=0.01)


def test_what_is_no_matrix_is_not_decayed():
    kinds = build_model(config(), device="meta").parameter_kinds()
    own = {
        name.removeprefix("blocks.0.attention."): kind
        for name, kind in kinds.items()
        if "0.attention." in name
    }
    maps = {f"{name}.weight": "matrix" for name in ("query", "key", "value", "z", "write", "forget", "out")}
    taps = {f"{name}_conv.weight": "vector" for name in ("query", "key", "value")}
    rates = {"forgetting.A_log": "vector", "forgetting.dt_bias": "vector", "norm.weight": "vector"}
    assert own == maps | taps | rates
    assert {kinds[f"blocks.0.{name}_norm.weight"] for name in ("attention", "mlp")} == {"vector"}


# ---- the first weights ----


def test_rates_of_forgetting_are_drawn_as_described():
    module = DecayGate(20000)
    module.draw(torch.Generator().manual_seed(0))
    rates, times = module.A_log.detach().exp(), F.softplus(module.dt_bias.detach())
    assert 0 < rates.min() < 0.01
    assert 15.9 < rates.max() <= 16
    assert rates.mean().item() == pytest.approx(8, rel=0.02)
    assert times.min() >= 0.99e-3
    assert times.max() <= 0.1001
    assert times.log().mean().item() == pytest.approx(math.log(1e-2), abs=0.02)
    kept = (-module(torch.zeros(1, 1, 20000))).median().item()
    assert 1 / kept == pytest.approx(16, rel=0.1)


def test_convolutions_keep_the_variance_of_noise():
    conv = ShortConvolution(5000, 4)
    conv.draw(torch.Generator().manual_seed(0))
    assert conv.weight.std().item() == pytest.approx(0.5, rel=0.02)
    noise = torch.randn(1, 50, 5000, generator=torch.Generator().manual_seed(1))
    assert conv(noise)[:, 4:].std().item() == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("init", ["scaled-gpt", "karpathy-gpt2", "standard"])
def test_maps_are_drawn_as_every_models_and_gains_begin_at_one(init):
    shape = ModelConfig("qwen3next", 128, 2, 4, 32, 96, 61, 32, full_attention_interval=2)
    model = build_model(shape, init=init)
    weights = dict(model.named_parameters())
    narrow, wide = {"karpathy-gpt2": (0.02, 0.02)}.get(init, (128**-0.5, 128**-0.5))
    residual = {"scaled-gpt": wide / 2, "karpathy-gpt2": 0.01, "standard": wide}[init]
    assert weights["blocks.0.attention.query.weight"].std().item() == pytest.approx(narrow, rel=0.03)
    assert weights["blocks.0.attention.z.weight"].std().item() == pytest.approx(wide, rel=0.03)
    assert weights["blocks.0.attention.out.weight"].std().item() == pytest.approx(residual, rel=0.03)
    assert not weights["blocks.0.attention_norm.weight"].any()
    assert (weights["blocks.0.attention.norm.weight"] == 1).all()
    logits = model(random_tokens(2, 32))
    assert logits.std().item() == pytest.approx(0.02 * 128**0.5 if init == "karpathy-gpt2" else 1, rel=0.15)


# ---- what it computes ----


@pytest.mark.sample(3)
@torch.no_grad()
@pytest.mark.parametrize("more", [EVERYWHERE, {}])
@pytest.mark.parametrize("length", [1, 2, 31, 65, 257])
def test_no_logit_depends_on_a_later_token(more, length):
    # To 1e-12 and not to the bit: other tokens go to other experts, and products of other shapes round otherwise.
    model, tokens = build_model(config(**more), dtype=torch.float64), random_tokens(2, length)
    logits = model(tokens)
    for place in {0, length // 2, length - 1}:
        other = tokens.clone()
        other[:, place] = (other[:, place] + 1) % 61
        changed = model(other)
        assert (changed - logits)[:, :place].abs().sum() <= 1e-12 * logits.numel()
        assert (changed - logits)[:, place].abs().max() > 1e-3
        prefix = model(tokens[:, : place + 1])
        assert (prefix - logits[:, : place + 1]).abs().max() <= 1e-12


@torch.no_grad()
def test_the_delta_layer_itself_is_causal_to_the_bit():
    layer = build_model(config()).blocks[0].attention
    x = torch.randn(2, 100, 32, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[:, 40:] += 1
    assert torch.equal(layer(x)[:, :40], layer(other)[:, :40])


@torch.no_grad()
@pytest.mark.parametrize("more", [EVERYWHERE, {}])
@pytest.mark.parametrize(
    "parts", [[250], pytest.param([30] + [1] * 220, marks=pytest.mark.slow), [3, 64, 1, 100, 82]]
)
def test_decoding_from_a_cache_is_the_whole_forward_over_250_tokens(more, parts):
    model, tokens = (
        build_model(config(2, **{"full_attention_interval": 2, **more}), dtype=torch.float64),
        random_tokens(2, 250),
    )
    whole, cache = model.hidden(tokens), model.new_cache()
    found = torch.cat([model.hidden(part, cache) for part in tokens.split(parts, dim=1)], dim=1)
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-10)
    assert cache.length == 250


@torch.no_grad()
def test_delta_layers_keep_a_state_of_one_size():
    model = build_model(config())
    cache = model.new_cache()
    sizes = []
    for length in (3, 100):
        model.hidden(random_tokens(1, length), cache)
        memory = cache.states[0]
        sizes.append((memory.memory.shape, [x.shape for x in memory.last]))
    assert sizes[0] == sizes[1] == ((1, 4, 8, 8), [(1, 3, 16), (1, 3, 16), (1, 3, 32)])


def test_text_is_generated_as_by_whole_forwards():
    model = build_model(config())
    tokens = [1, 2, 3]
    for token in greedy(model, [1, 2, 3], 40):
        with torch.no_grad():
            assert model(torch.tensor([tokens]))[0, -1].argmax() == token
        tokens.append(token)
    assert len(tokens) == 43


@pytest.mark.parametrize("more", [EVERYWHERE, {}])
def test_documents_in_one_row_are_what_they_are_alone(more):
    model = build_model(config(**more), dtype=torch.float64)
    tokens = random_tokens(1, 120, vocab=60)
    tokens[0, [33, 34, 90]] = 60
    model.document_token = 60
    logits = model(tokens)
    model.document_token = None
    alone = torch.cat([model(part) for part in tokens.split([33, 1, 56, 30], dim=1)], dim=1)
    torch.testing.assert_close(logits, alone, rtol=0, atol=1e-11)


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["full", "every-n:2", "selective"])
def test_checkpointing_changes_no_gradient(mode):
    gradients = []
    for checkpointing in ("none", mode):
        model = build_model(config(seq_len=70))
        model.set_activation_checkpointing(checkpointing)
        tokens = random_tokens(2, 71)
        model(tokens[:, :-1], tokens[:, 1:])[0].backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_a_traced_delta_layer_computes_what_the_eager_one_does():
    # Traced and differentiated as for the compiler, without its code generator: the scan is one operation to it.
    found = []
    for traced in (False, True):
        torch.compiler.reset()
        model, tokens = build_model(config(2, 70, full_attention_interval=2), seed=3), random_tokens(2, 70)
        if traced:
            model.blocks[0].attention.compile(backend="aot_eager", fullgraph=True)
        loss = model(tokens, tokens.roll(-1, 1))[0]
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_bfloat16_autocast_and_weights_stay_near_float32():
    model, tokens = build_model(config(n_experts=1, top_k=1)), random_tokens(2, 200)
    exact = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(tokens)
    assert (mixed.float() - exact).square().mean().sqrt() < 0.08
    model.bfloat16()
    assert (model(tokens).float() - exact).square().mean().sqrt() < 0.08


def test_one_batch_is_learned_by_heart():
    model, row = build_model(config(2, 33, full_attention_interval=2)), random_tokens(2, 33)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.0)
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(row[:, :-1], row[:, 1:])[0]
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize("more", [EVERYWHERE, {}])
def test_weights_travel_under_canonical_names(more):
    model = build_model(config(**more))
    other = build_model(config(**more), seed=1)
    load_canonical(other, {name: array.numpy() for name, array in canonical_arrays(model).items()})
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


# ---- what it refuses ----


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"full_attention_interval": 0},
            "full_attention_interval: Input should be greater",
        ),
        ({"full_attention_interval": 2.5}, "full_attention_interval: Input should be a valid integer"),
        (
            {"full_attention_interval": None, "conv_size": 3},
            "--conv-size: is for models with full_attention_interval",
        ),
        (
            {"full_attention_interval": 1, "linear_key_dim": 3},
            "--linear-key-dim: is for models with full_attention_interval",
        ),
        ({"linear_key_heads": 3, "linear_value_heads": 4}, "must divide linear_value_heads"),
        ({"linear_key_heads": 0}, "linear_key_heads: Input should be greater"),
        ({"conv_size": True}, "conv_size: Input should be a valid integer"),
        ({"rotary_dim": 3}, "rotary_dim is 3; it must be even and at most head_dim 16"),
        ({"rotary_dim": 18}, "rotary_dim is 18; it must be even and at most head_dim 16"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        config(**settings)


@pytest.mark.parametrize("arch", ["enoki", "llama", "moe", "gpt"])
def test_only_qwen3next_has_delta_layers(arch):
    with pytest.raises(UserError, match=f"--full-attention-interval 4: {arch} has attention in every layer"):
        ModelConfig(arch, 32, 4, 2, 16, 48, 61, 32, full_attention_interval=4)
