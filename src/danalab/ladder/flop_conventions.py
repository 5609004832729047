"""Conventions of counting FLOPs.

With N the parameters of the blocks' matrices (12 d^2 L for enoki; of experts, those that a token passes through), V
the vocabulary, d the width, L the layers with attention:

    6nd         6 (N + V d) a token: matrices and head
    6nd-total   6 (N + 2 V d): embedding too
    kaplan      6 N: matrices alone
    deepseek    6 N + 12 L d seq_len: matrices and attention
    exact       every matrix product as it is computed
"""

from typing import get_args

from danalab.errors import UserError, nearest
from danalab.ladder.fit import Convention
from danalab.scaling.dimensions import attention_layers, flops_per_token, matrix_params
from danalab.scaling.shape import Shape

CONVENTIONS = get_args(Convention)


def training_flops(shape: Shape, tokens: float, seq_len: int, convention: str = "exact") -> float:
    """FLOPs to train on `tokens` tokens."""
    if convention == "exact":
        return float(flops_per_token(shape, seq_len)) * tokens
    matrices = matrix_params(shape, active=True)
    attends = not shape.architecture.oscillators
    embedding = shape.vocab_size * shape.d_model
    per_token = {
        "6nd": 6 * (matrices + embedding),
        "6nd-total": 6 * (matrices + 2 * embedding),
        "kaplan": 6 * matrices,
        "deepseek": 6 * matrices + 12 * attends * attention_layers(shape) * shape.n_heads * shape.head_dim * seq_len,
    }
    if convention not in per_token:
        hint = nearest(convention, CONVENTIONS)
        raise UserError(f"--convention {convention}{hint}: known are {', '.join(CONVENTIONS)}")
    return float(per_token[convention]) * tokens
