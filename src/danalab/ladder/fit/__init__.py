"""Laws of the learning rate and the final loss, fitted to runs, with intervals."""

from typing import Literal

LawKind = Literal["saturated", "broken", "chinchilla"]
"""saturated: E + A C^-alpha; broken: E + A C^-alpha + B C^-beta; chinchilla: E + A N^-alpha + B D^-beta."""
Convention = Literal["exact", "model", "6nd", "6nd-total", "kaplan", "deepseek"]
"""Ways of counting compute. With N the parameters of the blocks' matrices (12 d^2 L for enoki; of experts, those that a
token passes through), V the vocabulary, d the width, L the layers with attention:

    6nd         6 (N + V d) a token: matrices and head
    6nd-total   6 (N + 2 V d): embedding too
    kaplan      6 N: matrices alone
    deepseek    6 N + 12 L d seq_len: matrices and attention
    model       every matrix product of the model as it is computed
    exact       these and the optimizer's own, as GPUs compute them
"""
