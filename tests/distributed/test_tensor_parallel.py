"""A model whose products are shared computes what a whole one does; matrices are held once."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.models.parallel import apply_tensor_parallel, check_tensor_parallel
from distributed.ranks import run_ranks

VOCAB = 29


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("arch", "head_dim"),
    [("enoki", 8), ("qwen3", 8), ("gpt", 8), ("llama", 8), ("qwen3", 12), ("gpt", 6), ("resonance", 8)],
)
def test_logits_hidden_and_losses_are_the_whole_models(arch, head_dim):
    more = {"learned_positions": True} if arch == "resonance" else {"n_kv_heads": 2}
    shape = ModelConfig(arch, 32, 2, 4, head_dim, 40, VOCAB, 10, **more)
    tokens = torch.randint(0, VOCAB, (3, 10), generator=torch.Generator().manual_seed(1))

    def shared(rank: int, size: int) -> list[torch.Tensor]:
        model = build_model(shape, device="meta")
        apply_tensor_parallel(model, init_device_mesh("cpu", (size,)))
        model.to_empty(device="cpu")
        model.init_weights(torch.Generator().manual_seed(0))
        assert all(isinstance(p, DTensor) for p in model.parameters())
        kept = sum(p.to_local().numel() for p in model.parameters() if p.placements != (Replicate(),))
        logits = model(tokens)
        return [
            logits.detach(),
            model.hidden(tokens).detach(),
            model.token_losses(tokens, tokens),
            torch.tensor(kept),
        ]

    whole = build_model(shape)
    expected = [whole(tokens).detach(), whole.hidden(tokens).detach(), whole.token_losses(tokens, tokens)]
    results = run_ranks(shared, 2)
    for *found, _ in results:
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    wholly_held = ("embedding", "head", "norm", "out.bias", "down.bias")
    cut = [p for name, p in whole.named_parameters() if not any(word in name for word in wholly_held)]
    assert sum(int(kept) for *_, kept in results) == sum(p.numel() for p in cut)  # nothing twice


def test_sizes_that_cannot_be_shared_are_refused():
    def config(**sizes: int) -> ModelConfig:
        return ModelConfig(**{"arch": "qwen3", "d_model": 48, "n_layers": 1, "n_heads": 6, "head_dim": 8, "mlp_dim": 60,
                              "vocab_size": 64, "seq_len": 8, **sizes})  # fmt: skip  # type: ignore[arg-type]

    check_tensor_parallel(config(), 3)
    with pytest.raises(UserError, match="--tp-size 4 does not divide the model's n_heads 6"):
        check_tensor_parallel(config(), 4)
    with pytest.raises(UserError, match="n_kv_heads 3"):
        check_tensor_parallel(config(n_kv_heads=3), 2)
    with pytest.raises(UserError, match="mlp_dim 61"):
        check_tensor_parallel(config(mlp_dim=61), 2)
