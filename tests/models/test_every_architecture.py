"""What each architecture owes by being in the registry, whatever it is made of. A new one is tested here by itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model, delta_rule
from danalab.models.architectures import ARCHITECTURES
from danalab.models.config import CHUNK
from danalab.optim.groups import KINDS
from danalab.scaling import flops_per_token
from decoding import greedy
from models.architectures import LENGTH, VARIANTS, VOCAB, is_dense_attention, tiny

every_architecture = pytest.mark.parametrize("arch", ARCHITECTURES)
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(0, VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.mark.sample(9)
@every_variant
def test_compute_by_formula_is_what_torch_counts(config: ModelConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delta_rule, "CHUNK_ON_CPU", CHUNK)
    wide = {"d_model": 128, "head_dim": 32 if config.head_dim == 8 else 48, "mlp_dim": 256, "vocab_size": 512}
    wide |= {"expert_dim": 128} if config.expert_dim else {}
    shape = ModelConfig(**{**config.as_dict(), **wide, "seq_len": 64})
    model, rows = build_model(shape), torch.zeros(2, 64, dtype=torch.int64)
    # Of torch's kernels for attention on CPUs its counter knows nothing; written out as products it counts them.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(rows).sum().backward()
    assert counter.get_total_flops() == pytest.approx(2 * 64 * flops_per_token(shape, 64), rel=0.01)


@pytest.mark.sample(9)
@every_variant
def test_a_token_changes_nothing_before_it(config: ModelConfig, tokens: Tensor):
    exact = is_dense_attention(config)
    model = build_model(config, seed=3, dtype=torch.float32 if exact else torch.float64)
    with torch.no_grad():
        before = model(tokens)
        for position in (1, 11, 23):
            changed = tokens.clone()
            changed[:, position] = (changed[:, position] + 1) % VOCAB
            after = model(changed)
            difference = (before - after).abs()
            assert float(difference[:, :position].max()) <= (0.0 if exact else 1e-9)
            assert float(difference[:, position].max()) > 1e-3


@pytest.mark.sample(9)
@every_variant
def test_generation_with_its_cache_takes_what_the_whole_model_finds_likeliest(config: ModelConfig):
    model = build_model(config, seed=4, dtype=torch.float64)
    text = [3, 1, 4, 1, 5, *greedy(model, [3, 1, 4, 1, 5], 19)]
    assert len(text) == LENGTH
    with torch.no_grad():
        assert model(torch.tensor([text]))[0, 4:-1].argmax(-1).tolist() == text[5:]


@every_architecture
def test_training_begins_near_the_loss_of_a_guess(arch: str):
    # Unit logits of all tokens cost half a nat; a head that knows the token just read (a tied one) would cost more.
    shape = tiny(arch, d_model=128, n_layers=3, head_dim=32, mlp_dim=256, vocab_size=2048, seq_len=64)
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 2048, (4, 65), generator=draw)
    with torch.no_grad():
        loss = build_model(shape)(rows[:, :-1], rows[:, 1:])[0]
    assert abs(float(loss) - math.log(2048)) < 0.9


@pytest.mark.sample(9)
@every_variant
def test_every_weight_has_a_kind_and_learns(config: ModelConfig, tokens: Tensor):
    model = build_model(config)
    kinds = model.parameter_kinds()
    assert list(kinds) == [name for name, _ in model.named_parameters()]
    assert set(kinds.values()) <= set(KINDS)
    model(tokens, tokens.roll(-1, 1))[0].backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not silent


@pytest.mark.slow
@every_architecture
def test_compiled_blocks_compute_what_eager_ones_do(arch: str, tokens: Tensor):
    torch.compiler.reset()

    def losses_and_gradients(compiled: bool) -> list[Tensor]:
        model = build_model(tiny(arch), seed=3)
        if compiled:
            for block in model.blocks:
                block.compile()
        loss = model(tokens, tokens.roll(-1, 1))[0]
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    for ours, theirs in zip(losses_and_gradients(True), losses_and_gradients(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@every_architecture
def test_a_row_that_is_too_long_is_refused(arch: str):
    with pytest.raises(UserError, match=f"{LENGTH + 1} tokens are more than the model's seq_len {LENGTH}"):
        build_model(tiny(arch))(torch.zeros(1, LENGTH + 1, dtype=torch.int64))
