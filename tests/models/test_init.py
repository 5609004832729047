from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model, load_canonical
from danalab.scaling import dimensions, parameter_count
from models.weights import canonical_arrays


@pytest.mark.parametrize("scheme", ["ScaledGPT", "KarpathyGPT2", "Standard"])
@pytest.mark.parametrize("arch", ["enoki", "qwen3"])
def test_standard_deviations_are_golden(golden: Path, arch: str, scheme: str):
    measured = json.loads((golden / "init_statistics.json").read_text())["measured"][f"{arch}/{scheme}"]
    sizes = measured["config"]
    config = ModelConfig(
        arch=arch,
        d_model=sizes["n_embd"],
        n_layers=sizes["n_layer"],
        n_heads=sizes["n_head"],
        head_dim=sizes["qkv_dim"],
        mlp_dim=sizes["mlp_hidden_dim"],
        vocab_size=sizes["vocab_size"],
        seq_len=sizes["sequence_length"],
    )
    gathered: dict[str, list[torch.Tensor]] = {}
    for name, weight in canonical_arrays(build_model(config, init=scheme)).items():
        kind = re.sub(r"layers\.\d+", "layers.*", name)
        if "layers.*.attention.qkv.weight" in measured["kinds"]:
            kind = re.sub(r"attention\.[qkv]\.", "attention.qkv.", kind)
        gathered.setdefault(kind, []).append(weight.flatten())
    assert set(gathered) == set(measured["kinds"])
    for kind, parts in gathered.items():
        values, std = torch.cat(parts).double(), measured["kinds"][kind]["theoretical_std"]
        if std == 0:
            assert torch.equal(values, torch.ones_like(values)), kind
            continue
        n = values.numel()
        assert float(values.std()) == pytest.approx(std, rel=5 / math.sqrt(2 * n)), kind
        assert abs(float(values.mean())) < 5 * std / math.sqrt(n), kind
        assert float((values / std).pow(4).mean()) == pytest.approx(3, abs=5 * math.sqrt(96 / n)), kind


def test_biases_begin_at_zero_positions_as_embeddings_and_a_tied_table_as_a_head():
    shape = ModelConfig("gpt", 256, 2, 4, 64, 512, 700, 300)
    positions = {"scaled-gpt": 1 / 16, "karpathy-gpt2": 0.02, "standard": 1.0}
    tokens = {"scaled-gpt": 1 / 16, "karpathy-gpt2": 0.02, "standard": 1 / 16}
    for scheme in positions:
        model = build_model(shape, init=scheme)
        assert not any(value.any() for name, value in model.named_parameters() if name.endswith("bias"))
        assert float(model.position_embedding.weight.detach().std()) == pytest.approx(
            positions[scheme], rel=0.02
        )
        assert float(model.token_embedding.weight.detach().std()) == pytest.approx(tokens[scheme], rel=0.02)


@pytest.mark.parametrize(
    "spellings",
    [("scaled-gpt", "ScaledGPT", "scaled_gpt"), ("karpathy-gpt2", "KarpathyGPT2"), ("standard", "Standard")],
)
def test_both_spellings_name_the_same_scheme(tiny: ModelConfig, spellings: tuple[str, ...]):
    first, *others = (build_model(tiny, init=name).state_dict() for name in spellings)
    for other in others:
        torch.testing.assert_close(first, other, rtol=0, atol=0)


def test_unknown_scheme_is_refused_with_the_nearest_name(tiny: ModelConfig):
    with pytest.raises(UserError, match="did you mean 'karpathy-gpt2'"):
        build_model(tiny, init="karpathy-gpt3")


def test_a_seed_decides_all_weights(tiny: ModelConfig):
    one, same, other = (build_model(tiny, seed=seed).state_dict() for seed in (1, 1, 2))
    torch.testing.assert_close(one, same, rtol=0, atol=0)
    assert not torch.equal(one["token_embedding.weight"], other["token_embedding.weight"])


def test_building_does_not_touch_the_global_generator(tiny: ModelConfig):
    before = torch.get_rng_state()
    build_model(tiny)
    assert torch.equal(before, torch.get_rng_state())


def test_weights_are_the_same_numbers_in_every_dtype(tiny: ModelConfig):
    single, half = build_model(tiny), build_model(tiny, dtype=torch.bfloat16)
    torch.testing.assert_close(single.bfloat16().state_dict(), half.state_dict(), rtol=0, atol=0)


def test_meta_model_given_memory_later_equals_the_model_built_at_once(tiny: ModelConfig):
    late = build_model(tiny, device="meta")
    assert all(tensor.is_meta for tensor in [*late.parameters(), *late.buffers()])
    late.to_empty(device="cpu")
    late.init_weights(torch.Generator().manual_seed(5))
    at_once = build_model(tiny, seed=5)
    torch.testing.assert_close(late.state_dict(), at_once.state_dict(), rtol=0, atol=0)
    tokens = torch.arange(8)[None]
    assert torch.equal(late(tokens), at_once(tokens))


def test_a_rank_of_a_sharded_model_draws_its_part_of_the_same_weights(tiny: ModelConfig):
    whole = build_model(tiny, seed=5)
    rank = (
        2  # the last, with the smallest part; one only, as torch remembers a mesh's parts through the process
    )
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=3)
    try:
        model = build_model(tiny, device="meta")
        mesh = distributed.device_mesh.init_device_mesh("cpu", (3,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.to_empty(device="cpu")
        model.init_weights(torch.Generator().manual_seed(5))
        _assert_own_parts(model, whole, rank)
        load_canonical(model, canonical_arrays(build_model(tiny, seed=6)))
        _assert_own_parts(model, build_model(tiny, seed=6), rank)
    finally:
        distributed.destroy_process_group()


def _assert_own_parts(model: torch.nn.Module, whole: torch.nn.Module, rank: int) -> None:
    for (name, part), full in zip(model.named_parameters(), whole.parameters(), strict=True):
        pieces = full.detach().chunk(3)  # uneven, and perhaps fewer than ranks
        own = pieces[rank] if rank < len(pieces) else full[:0]
        assert torch.equal(part.to_local(), own), name


@pytest.mark.parametrize(
    ("arch", "heads"), [("enoki", 2), ("enoki", 12), ("qwen3", 2), ("qwen3", 6), ("gpt", 4), ("llama", 2)]
)
@pytest.mark.parametrize("gate", [False, True])
def test_built_size_is_golden_and_equals_the_formula(golden: Path, arch: str, heads: int, gate: bool):
    shape = dimensions(arch, heads)
    sizes = {
        field: getattr(shape, field) for field in ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim")
    }
    config = ModelConfig(arch, **sizes, vocab_size=shape.vocab_size, seq_len=8, attention_gate=gate)
    model = build_model(config, device="meta")
    assert model.num_parameters() == parameter_count(config)
    counts = json.loads((golden / "init_statistics.json").read_text())["parameter_counts_of_built_models"]
    want = counts.get(f"{arch}/heads{heads}{'/gated' if gate else ''}")
    if want is not None:
        assert model.num_parameters() == want["actual_total"]
