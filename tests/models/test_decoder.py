"""What decoders with attention promise: caching, checkpointing, compilation, and refusal of bad input.

What holds for each architecture of the registry is in `test_every_architecture.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.models.architectures import ARCHITECTURES
from danalab.models.decoder import Decoder
from danalab.models.layers.attention import Rotary, rotate
from danalab.models.layers.basic import Norm
from danalab.scaling import dimensions, parameter_count

STRUCTURES = {name: ARCHITECTURES[name] for name in ARCHITECTURES}
ATTENTION = [name for name, made in STRUCTURES.items() if not made.oscillators]
DENSE = [name for name in ATTENTION if not STRUCTURES[name].n_experts]


@pytest.fixture
def model(tiny: ModelConfig) -> Decoder:
    return build_model(tiny, seed=3)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(0, 61, (3, 24), generator=torch.Generator().manual_seed(0))


@pytest.mark.sample(5)
@pytest.mark.parametrize("split", [[24], [1] * 24, [10] + [1] * 14, [7, 9, 8]], ids=str)
def test_cached_pieces_give_the_hidden_states_of_the_whole(model: Decoder, tokens: Tensor, split: list[int]):
    model.double()
    cache = model.new_cache()
    with torch.no_grad():
        pieces = [model.hidden(piece, cache=cache) for piece in tokens.split(split, dim=1)]
    assert cache.length == 24
    torch.testing.assert_close(torch.cat(pieces, dim=1), model.hidden(tokens), rtol=0, atol=1e-12)


@pytest.mark.sample(5)
@pytest.mark.parametrize("mode", ["full", "every-n:1", "every-n:2", "selective"])
def test_activation_checkpointing_changes_no_gradient(model: Decoder, tokens: Tensor, mode: str):
    plain = _gradients(model, tokens)
    model.set_activation_checkpointing(mode)
    checkpointed = _gradients(model, tokens)
    torch.testing.assert_close(checkpointed, plain, rtol=0, atol=0)


def test_checkpointing_keeps_less_and_selective_lies_between(model: Decoder, tokens: Tensor):
    kept = {}
    for mode in ("none", "selective", "every-n:2", "full"):
        model.set_activation_checkpointing(mode)
        kept[mode] = _saved_elements(model, tokens)
    assert kept["full"] < kept["every-n:2"] < kept["none"]


def test_every_n_checkpoints_each_nth_block():
    model = build_model(ModelConfig("enoki", 8, 5, 1, 8, 8, 11, 4))
    model.set_activation_checkpointing("every-n:2")
    assert [block.checkpointing for block in model.blocks] == ["full", "none", "full", "none", "full"]
    model.set_activation_checkpointing("none")
    assert {block.checkpointing for block in model.blocks} == {"none"}


@pytest.mark.parametrize("mode", ["fulll", "every-n", "every-n:0", "every-n:x", ""])
def test_unknown_checkpointing_is_refused(model: Decoder, mode: str):
    with pytest.raises(UserError, match="unknown activation checkpointing"):
        model.set_activation_checkpointing(mode)


@pytest.mark.sample(2)
@pytest.mark.parametrize("mode", ["none", "full"])
def test_blocks_compile_whole_and_once_for_all_layers(tiny: ModelConfig, tokens: Tensor, mode: str):
    torch.compiler.reset()
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    model = build_model(tiny, seed=3)
    want = _gradients(model, tokens)
    for layer, block in enumerate(model.blocks):
        model.blocks[layer] = torch.compile(block, backend=count, fullgraph=True)  # pyright: ignore
    model.set_activation_checkpointing(mode)
    for _ in range(3):
        got = _gradients(model, tokens)
    assert len(graphs) == 1
    assert list(model.parameter_kinds()) == [name for name, _ in model.named_parameters()]
    for (name, grad), other in zip(want.items(), got.values(), strict=True):
        torch.testing.assert_close(
            other, grad, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.slow
def test_compiled_blocks_decode_without_compiling_again(tiny: ModelConfig, tokens: Tensor):
    torch.compiler.reset()
    model = build_model(tiny, seed=3)
    want = model(tokens)
    for block in model.blocks:
        block.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(model(tokens), want, rtol=0, atol=1e-5)
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
        cache = model.new_cache()
        pieces = [model.hidden(piece, cache=cache) for piece in tokens.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1) @ model.head_weight.T, want, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_compiled_blocks_take_other_lengths(tiny: ModelConfig, tokens: Tensor):
    torch.compiler.reset()
    model = build_model(tiny, seed=3)
    want = [model(tokens[:, :length]) for length in (24, 16, 1, 9)]
    for block in model.blocks:
        block.compile(backend="eager", fullgraph=True)
    for exact in want:
        torch.testing.assert_close(model(tokens[:, : exact.shape[1]]), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.tensor([[5, 61]]), "token id 61 is outside the model's vocabulary of 61"),
        (torch.tensor([[-1, 5]]), "token id -1 is outside"),
        (torch.zeros(1, 25, dtype=torch.int64), "25 tokens are more than the model's seq_len 24"),
        (torch.zeros(1, 4), r"tokens are float32 \[1, 4\]; they must be int64 or int32"),
        (
            torch.zeros(4, dtype=torch.int64),
            r"tokens are int64 \[4\]; they must be int64 or int32 \[batch, length\]",
        ),
        (torch.zeros(2, 0, dtype=torch.int64), "not empty"),
    ],
)
def test_bad_tokens_are_refused_by_name(model: Decoder, bad: Tensor, message: str):
    with pytest.raises(UserError, match=message):
        model(bad)


def test_a_cache_refuses_what_does_not_fit(model: Decoder, tokens: Tensor):
    cache = model.new_cache()
    model.hidden(tokens[:, :8], cache=cache)
    with pytest.raises(
        UserError, match="20 tokens after 8 in the cache are more than the model's seq_len 24"
    ):
        model.hidden(tokens[:, :20], cache=cache)


def test_autocast_stays_near_float32_and_keeps_the_loss_in_float32(model: Decoder, tokens: Tensor):
    exact = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
        ce, _ = model(tokens, tokens)
    ce.backward()
    assert (logits.dtype, ce.dtype, model.head_weight.grad.dtype) == (
        torch.bfloat16,
        torch.float32,
        torch.float32,
    )
    far = ((logits.float() - exact).abs() > 0.15).float().mean()
    assert far <= (0.02 if model.config.sparsity else 0.0)  # rounding may send a token to another expert


@pytest.mark.parametrize("tiny", ["enoki"], indirect=True)
def test_rotary_tables_stay_float32_in_a_bfloat16_model(tiny: ModelConfig):
    fresh = build_model(tiny).rotary.table
    assert torch.equal(build_model(tiny, dtype=torch.bfloat16).rotary.table, fresh)
    assert torch.equal(build_model(tiny).bfloat16().float().rotary.table, fresh)


def test_rotation_compiles_to_the_same_numbers():
    torch.compiler.reset()
    x = torch.randn(2, 5, 3, 8, generator=torch.Generator().manual_seed(0))
    table = Rotary(9, 8, 10000.0)(torch.arange(4, 9))
    compiled = torch.compile(rotate, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, table), rotate(x, table), rtol=0, atol=1e-6)


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    rotary = Rotary(64, 8, 10000.0).double()
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def score(at_q: int, at_k: int) -> float:
        return float(
            (rotate(q, rotary(torch.tensor([at_q]))) * rotate(k, rotary(torch.tensor([at_k])))).sum()
        )

    assert float(rotate(q, rotary(torch.tensor([40]))).norm()) == pytest.approx(float(q.norm()), rel=1e-12)
    assert score(7, 3) == pytest.approx(score(50, 46), rel=1e-12)


def test_norms_have_a_gain_and_no_shift():
    assert [name for name, _ in Norm(4, 1e-5).named_parameters()] == ["weight"]


@pytest.mark.parametrize("arch", DENSE)
@pytest.mark.parametrize("gate", [False, True])
def test_parameter_count_is_the_sum_of_its_parts(arch: str, gate: bool):
    d, layers, heads, head_dim, mlp, vocab, kv_heads = 24, 3, 4, 8, 40, 31, 2
    model = build_model(ModelConfig(arch, d, layers, heads, head_dim, mlp, vocab, 8, 1e-5, gate, kv_heads))
    attention = d * head_dim * (2 * heads + 2 * kv_heads + (heads if gate else 0))
    mlps = {"enoki": 2, "qwen3": 3, "gpt": 2, "llama": 3}[arch] * d * mlp
    gains = layers * (2 * d + (2 * head_dim if arch in ("enoki", "qwen3") else 0)) + d
    matrices = layers * (attention + mlps)
    if arch == "gpt":
        biases = gains + layers * (head_dim * (heads + 2 * kv_heads) + d + mlp + d)
        assert model.num_parameters() == matrices + gains + biases + (vocab + 8) * d
    else:
        assert model.num_parameters() == matrices + gains + 2 * vocab * d
    assert model.num_parameters() == parameter_count(model.config)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_tied_head_is_the_embedding_counted_once_and_gets_both_gradients(arch: str, tokens: Tensor):
    config = ModelConfig(arch, 32, 1, 4, 8, 48, 61, 24, tied_head=True)
    model = build_model(config, dtype=torch.float64)
    assert model.head_weight is model.token_embedding.weight
    assert model.num_parameters() == parameter_count(config)
    assert not any("output_head" in name for name in model.state_dict())
    assert model.parameter_kinds()["token_embedding.weight"] == "embedding"
    embedding = model.head_weight.detach().clone().requires_grad_()
    head = model.head_weight.detach().clone().requires_grad_()
    apart = build_model(replace(config, tied_head=False), dtype=torch.float64)
    weights = {**model.state_dict(), "token_embedding.weight": embedding, "output_head.weight": head}
    torch.func.functional_call(apart, weights, (tokens, tokens.roll(-1, 1)))[0].backward()
    model(tokens, tokens.roll(-1, 1))[0].backward()
    assert embedding.grad is not None
    assert head.grad is not None
    torch.testing.assert_close(model.head_weight.grad, embedding.grad + head.grad, rtol=0, atol=1e-14)


def test_gpt_has_the_size_of_gpt2_and_llama_that_of_llama_7b():
    gpt, llama = dimensions("gpt", 12, 50257), dimensions("llama", 32, 32000)
    assert parameter_count(replace(gpt, seq_len=1024)) == 124_439_808
    assert (llama.d_model, llama.n_layers, llama.mlp_dim) == (4096, 32, 11008)
    assert parameter_count(llama) == 6_738_415_616


def test_residual_scale_zero_leaves_the_embedding(tokens: Tensor):
    model = build_model(ModelConfig("enoki", 16, 2, 2, 8, 32, 61, 24, residual_scale=0.0))
    assert torch.equal(model.hidden(tokens), model.final_norm(model.token_embedding(tokens)))


def _gradients(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    ce, lse2 = model(tokens, tokens.roll(-1, 1), z_loss=1e-4)
    (ce + 1e-4 * lse2).backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _saved_elements(model: Decoder, tokens: Tensor) -> int:
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.hidden(tokens)
    return sum(saved.values())
