import pytest

from danalab.errors import UserError
from danalab.ladder.compute import UNITS, in_unit, training_flops
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


def test_units_and_unknown_names():
    assert in_unit(3600e15, "pfh") == 1
    assert in_unit(86400e15, "pfd") == 1
    assert set(UNITS) == {"flops", "pfh", "pfd"}
    with pytest.raises(UserError, match="did you mean 'pfh'"):
        in_unit(1.0, "pfhh")
    with pytest.raises(UserError, match="did you mean 'exact'"):
        training_flops(ENOKI, 1.0, T, "exakt")
