"""Heads -> dimensions, and dimensions -> parameters and FLOPs.

    enoki   head_dim  64, n_layers = 3 heads // 4, d_model =  64 heads, mlp_dim = 4 d_model
    qwen3   head_dim 128, n_layers = 2 heads,      d_model = 128 heads, mlp_dim = 3 d_model

Two counts are kept apart: the *size law* of the paper (12 d_model^2 n_layers, what learning rates and horizons were
fitted against) and the *exact* count of the model as built (what compute is reckoned with). They agree for enoki but
for its gains; a gated qwen3 has 14 d_model^2 a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from danalab.errors import UserError
from danalab.registry import Registry

GPT2_VOCAB = 50304
"""GPT-2's 50,257 token ids, padded to a multiple of 64: the vocabulary of the paper's ladder."""


class Shape(Protocol):
    """Whatever knows its own dimensions: `Dimensions` here, `ModelConfig` in danalab.models."""

    @property
    def arch(self) -> str: ...
    @property
    def d_model(self) -> int: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def mlp_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def attention_gate(self) -> bool | None: ...
    @property
    def n_kv_heads(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """The shape of a model, before it is built."""

    arch: str
    d_model: int
    n_layers: int
    n_heads: int
    head_dim: int
    mlp_dim: int
    vocab_size: int = GPT2_VOCAB
    attention_gate: bool | None = None
    """Gated attention output; None = the architecture's default (qwen3 yes, enoki no)."""
    n_kv_heads: int | None = None
    """Key/value heads; None = as many as query heads."""

    @property
    def non_emb_params(self) -> int:
        """The size law P that learning rates were fitted against; 12 d_model^2 n_layers at the standard widths."""
        if self.arch == "enoki":
            attention = 4 * self.d_model * self.n_heads * self.head_dim
            return self.n_layers * (attention + 2 * self.d_model * self.mlp_dim)
        # The paper's law for qwen3 ignores its third mlp matrix and its gate; the fitted LRs rest on it all the same.
        return 12 * self.d_model**2 * self.n_layers

    @property
    def total_params(self) -> int:
        """The size law with embedding and untied head, which sets the horizon."""
        return self.non_emb_params + 2 * self.d_model * self.vocab_size


def _enoki(heads: int) -> dict[str, int]:
    return {"head_dim": 64, "n_layers": 3 * heads // 4, "d_model": 64 * heads}


def _qwen3(heads: int) -> dict[str, int]:
    return {"head_dim": 128, "n_layers": 2 * heads, "d_model": 128 * heads}


SIZE_RULES: Registry[Callable[[int], dict[str, int]]] = Registry("architecture with a --heads rule")
SIZE_RULES.add("enoki", _enoki)
SIZE_RULES.add("qwen3", _qwen3)


MLP_RATIO = {"enoki": 4, "qwen3": 3}
"""Hidden width of the mlp in units of d_model, where it isn't given."""


def dimensions(arch: str, heads: int, vocab_size: int = GPT2_VOCAB) -> Dimensions:
    """Dimensions of `arch` at `heads` attention heads.

    Raises:
        UserError: unknown architecture, or so few heads that no layer is left.
    Source: arXiv 2602.05298, the Enoki and Qwen3 ladders.
    """
    arch = SIZE_RULES.canonical(arch)
    if heads < 1:
        raise UserError(f"--heads {heads}: at least 1 is needed")
    rule = SIZE_RULES.get(arch)
    sizes = rule(heads)
    if sizes["n_layers"] < 1:
        smallest = next(h for h in range(heads, 1000) if rule(h)["n_layers"] >= 1)
        raise UserError(f"--heads {heads} gives {arch} zero layers; the smallest size is --heads {smallest}")
    return explicit_dimensions(arch, **sizes, n_heads=heads, vocab_size=vocab_size)


def explicit_dimensions(
    arch: str,
    d_model: int,
    n_layers: int,
    n_heads: int,
    head_dim: int | None = None,
    mlp_dim: int | None = None,
    vocab_size: int = GPT2_VOCAB,
) -> Dimensions:
    """Dimensions given one by one; head_dim defaults to d_model / n_heads, mlp_dim to the architecture's ratio.

    Raises:
        UserError: unknown architecture, a size below 1, or n_heads that does not divide d_model.
    """
    arch = SIZE_RULES.canonical(arch)
    if head_dim is None:
        if n_heads < 1 or d_model % n_heads:
            raise UserError(f"--n-heads {n_heads} does not divide --d-model {d_model}; give --head-dim")
        head_dim = d_model // n_heads
    sizes: dict[str, int] = {
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "head_dim": head_dim,
        "mlp_dim": MLP_RATIO[arch] * d_model if mlp_dim is None else mlp_dim,
        "vocab_size": vocab_size,
    }
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"--{name.replace('_', '-')} {size}: at least 1 is needed")
    return Dimensions(arch=arch, attention_gate=None, n_kv_heads=None, **sizes)


def is_gated(shape: Shape) -> bool:
    """Whether the attention output is gated, with the architecture's default where the shape leaves it open."""
    return shape.arch == "qwen3" if shape.attention_gate is None else shape.attention_gate


def _matrix_params_per_layer(shape: Shape) -> int:
    """Weights of one block that take part in matrix products."""
    width = shape.n_heads * shape.head_dim
    kv_width = (shape.n_kv_heads or shape.n_heads) * shape.head_dim
    query = width * (2 if is_gated(shape) else 1)
    mlp_matrices = 2 if shape.arch == "enoki" else 3
    return shape.d_model * (query + 2 * kv_width + width + mlp_matrices * shape.mlp_dim)


def parameter_count(shape: Shape, *, embeddings: bool = True) -> int:
    """Exact number of parameters of the model as built, gains included.

    Args:
        embeddings: count the token embedding and the untied head too.
    """
    gains = shape.n_layers * (2 * shape.d_model + 2 * shape.head_dim) + shape.d_model
    count = shape.n_layers * _matrix_params_per_layer(shape) + gains
    return count + 2 * shape.vocab_size * shape.d_model if embeddings else count


def flops_per_token(shape: Shape, seq_len: int) -> int:
    """FLOPs to train on one token: every matrix product of forward (2 a weight) and backward (4 a weight).

    Attention scores and mixing count in full, as torch's counter does: 12 n_layers (n_heads head_dim) seq_len.

    Args:
        seq_len: context length [tokens].
    """
    weights = shape.n_layers * _matrix_params_per_layer(shape) + shape.vocab_size * shape.d_model
    attention = 12 * shape.n_layers * shape.n_heads * shape.head_dim * seq_len
    return 6 * weights + attention
