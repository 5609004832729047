import pytest

from danalab.errors import UserError
from danalab.ladder.fit.tuning import flops_of, training_flops
from danalab.models import ModelConfig
from danalab.scaling import dimensions, flops_per_token

ENOKI = dimensions("enoki", 12)
L, d, V, T = ENOKI.n_layers, ENOKI.d_model, 50304, 2048


@pytest.mark.parametrize(
    ("convention", "per_token"),
    [
        ("6nd", 72 * L * d**2 + 6 * V * d),
        ("6nd-total", 72 * L * d**2 + 12 * V * d),
        ("kaplan", 72 * L * d**2),
        ("deepseek", 72 * L * d**2 + 12 * L * d * T),
        ("exact", flops_per_token(ENOKI, T)),
    ],
)
def test_every_convention_counts_enoki_as_published(convention, per_token):
    assert training_flops(ENOKI, 1e6, T, convention) == 1e6 * per_token


def test_the_exact_convention_is_matrices_head_and_attention():
    assert flops_per_token(ENOKI, T) == 72 * L * d**2 + 6 * V * d + 12 * L * d * T


def test_an_unknown_convention_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'exact'"):
        training_flops(ENOKI, 1.0, T, "exakt")


def test_experts_count_as_far_as_a_token_passes_through_them_and_oscillators_have_no_scores():
    common = {
        "d_model": 64,
        "n_layers": 4,
        "n_heads": 4,
        "head_dim": 16,
        "mlp_dim": 128,
        "vocab_size": 512,
        "seq_len": 128,
    }
    few = {"arch": "enoki", **common, "n_experts": 16, "top_k": 2, "expert_dim": 32}
    row = {"name": "few", "flops": 1.0, "tokens": 1.0, "settings": few}
    exact = flops_per_token(ModelConfig(**few), 128)
    attention = 12 * 4 * 64 * 128
    assert flops_of(row, 1.0, "6nd") + attention == exact
    assert flops_of(row, 1.0, "deepseek") - flops_of(row, 1.0, "kaplan") == attention
    waves = ModelConfig(arch="resonance", **common)
    assert training_flops(waves, 1.0, 128, "deepseek") == training_flops(waves, 1.0, 128, "kaplan")
