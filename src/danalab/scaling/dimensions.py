"""Heads -> dimensions, by the rules of `danalab.scaling.architectures`, and dimensions -> parameters and FLOPs.

There are two counts: the *size law* of the paper (12 d_model^2 n_layers, what learning rates and horizons were
fitted against) and the *exact* count of the model as built (for compute). They agree for enoki except for its gains; a
gated qwen3 has 14 d_model^2 per layer.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from danalab.errors import UserError, nearest
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.shape import (
    GPT2_VOCAB,
    Shape,
    active_mlp_params,
    attention_layers,
    linear_attention,
    sparsity,
    weights,
)


@dataclass(frozen=True, kw_only=True)
class Dimensions(Shape):
    """The shape of a model, before it is built."""

    vocab_size: int = GPT2_VOCAB
    seq_len: int = 0
    """Positions with a vector of their own, where positions are learned; 0 leaves them out of the count."""

    @property
    def non_emb_params(self) -> int:
        """The size law P that learning rates were fitted against; 12 d_model^2 n_layers at the standard widths.

        Only the experts that a token passes through count.
        """
        # The paper's law for qwen3 ignores its third MLP matrix and its gate; the LRs were fitted with it.
        if self.architecture.size_law:
            law = 12 * self.d_model**2 * self.n_layers
            if sparsity(self) is None:
                return law
            dense = self.architecture.mlp_matrices * self.d_model * self.mlp_dim * self.n_layers
            used = matrix_params(self, active=True)
            return law * used // (used - active_mlp_params(self) + dense)
        return matrix_params(self, active=True)

    @property
    def total_params(self) -> int:
        """The size law with token embedding and head (once where they are one), which determines the horizon."""
        return self.non_emb_params + (1 if self.tied else 2) * self.d_model * self.vocab_size

    @property
    def exact_params(self) -> int:
        """Parameters of the model as built."""
        return parameter_count(self)

    @property
    def active_params(self) -> int:
        """Parameters that a token passes through: all except the experts that it is not sent to."""
        return parameter_count(self, active=True)

    @property
    def sparse_layers(self) -> int | None:
        """Layers that have experts; None where there are none."""
        sparse = sparsity(self)
        return None if sparse is None else len(sparse.layers)

    @property
    def delta_layers(self) -> int:
        """Layers that have the gated delta rule in place of attention."""
        return self.n_layers - attention_layers(self)

    def resolved(self) -> "Dimensions":
        """The same shape, each None replaced by what the architecture has; None is left where there is no such part."""
        structure, sparse = self.architecture, sparsity(self)
        modes = self.modes * self.n_heads if structure.oscillators else 0
        return replace(
            self,
            attention_gate=self.gated,
            tied_head=self.tied,
            n_kv_heads=self.kv_heads,
            num_frequencies=modes or None,
            n_experts=sparse and sparse.n_experts,
            top_k=sparse and sparse.top_k,
            expert_dim=sparse and sparse.expert_dim,
            n_shared_experts=sparse and sparse.shared_dim // sparse.expert_dim,
        )


def dimensions(arch: str, heads: int, vocab_size: int = GPT2_VOCAB, n_kv_heads: int | None = None) -> Dimensions:
    """Dimensions of `arch` at `heads` attention heads.

    UserError: unknown architecture, too few heads for one layer, or n_kv_heads that does not divide them.
    Source: arXiv 2602.05298, the Enoki and Qwen3 ladders; the others: see `danalab.scaling.architectures`.
    """
    arch = ARCHITECTURES.canonical(arch)
    if heads < 1:
        raise UserError(f"--heads {heads}: at least 1 is needed")
    rule = ARCHITECTURES.get(arch)
    n_layers = rule.n_layers(heads)
    if n_layers < 1:
        smallest = next(h for h in range(heads, 1000) if rule.n_layers(h) >= 1)
        raise UserError(f"--heads {heads} gives {arch} zero layers; the smallest size is --heads {smallest}")
    return explicit_dimensions(
        arch, heads * rule.head_dim, n_layers, heads, rule.head_dim, vocab_size=vocab_size, n_kv_heads=n_kv_heads
    )


def explicit_dimensions(
    arch: str,
    d_model: int,
    n_layers: int,
    n_heads: int,
    head_dim: int | None = None,
    mlp_dim: int | None = None,
    vocab_size: int = GPT2_VOCAB,
    n_kv_heads: int | None = None,
) -> Dimensions:
    """Explicit dimensions; head_dim defaults to d_model / n_heads, mlp_dim to the architecture's rule."""
    arch = ARCHITECTURES.canonical(arch)
    if head_dim is None:
        if n_heads < 1 or d_model % n_heads:
            raise UserError(f"--n-heads {n_heads} does not divide --d-model {d_model}; give --head-dim")
        head_dim = d_model // n_heads
    mlp_dim = ARCHITECTURES.get(arch).mlp_dim(d_model) if mlp_dim is None else mlp_dim
    names, values = ("d_model", "n_layers", "n_heads", "head_dim"), (d_model, n_layers, n_heads, head_dim)
    sizes: dict[str, Any] = {**dict(zip(names, values, strict=True)), "mlp_dim": mlp_dim, "vocab_size": vocab_size}
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"--{name.replace('_', '-')} {size}: at least 1 is needed")
    if n_kv_heads is not None and (n_kv_heads < 1 or n_heads % n_kv_heads):
        fitting = ", ".join(str(n) for n in range(1, n_heads + 1) if n_heads % n == 0)
        raise UserError(f"--n-kv-heads {n_kv_heads} does not divide the {n_heads} heads; {fitting} do")
    return Dimensions(arch=arch, n_kv_heads=n_kv_heads, **sizes)


def matrix_params(shape: Shape, *, active: bool = False) -> int:
    """Weights of all blocks that take part in matrix products: no embeddings, head, gains or biases.

    `active`: count only the experts that a token passes through.
    """
    return _count(shape, ("matrix", "router", "experts"), active)


def parameter_count(shape: Shape, *, embeddings: bool = True, active: bool = False) -> int:
    """Exact number of parameters of the model as built, gains and biases included.

    Args:
        embeddings: count the embeddings of tokens and learned positions, and an untied head.
        active: count only the experts that a token passes through.
    """
    tables = ("embedding", "head") if embeddings else ()
    return _count(shape, ("matrix", "router", "experts", "vector", *tables), active)


def _count(shape: Shape, kinds: tuple[str, ...], active: bool) -> int:
    found, sparse, count = weights(shape), sparsity(shape), 0
    for (kind, dims), times in found.items():
        if active and kind == "experts" and sparse is not None:
            dims = (sparse.top_k, *dims[1:])
        count += times * math.prod(dims) if kind in kinds else 0
    return count


def flops_per_token(shape: Shape, seq_len: int) -> int:
    """FLOPs to train on one token: every matrix product of forward (2 a weight) and backward (4 a weight).

    Attention scores and mixing count in full, as in torch's counter: 12 n_layers (n_heads head_dim) seq_len; the delta
    rule by its matrix products; experts only if the token is sent to them. The Fourier transforms and short
    convolutions of resonance do not count: they are under 1% of its FLOPs, and memory-bound.
    """
    weights = matrix_params(shape, active=True) + shape.vocab_size * shape.d_model
    if shape.architecture.oscillators:
        return 6 * weights
    attention = 12 * attention_layers(shape) * shape.n_heads * shape.head_dim * seq_len
    linear = linear_attention(shape)
    return 6 * weights + attention + (0 if linear is None else len(linear.layers) * linear.flops_per_token())


# ---- the resonance model ----
#
# Sizes of the resonance model, by name or by explicit numbers.
#
# The sizes "-32k" are those of the FineWeb-Edu 32k script, which counts them as 50M, 500M and 1B; its medium is ours.
# The channels are divided into groups (8, unless n_heads says otherwise) that share the poles of R = num_frequencies /
# groups damped oscillators; the MLP has 64 round(8 d_model / 192) hidden units.


GROUPS = 8
LONGEST_TABLE = 32768
"""Rows of a table of learned positions, at most."""


SIZES = {
    "small": (512, 8, 64),  # 48.6M parameters with a tied head and 50,304 ids
    "medium": (1024, 12, 128),  # 191M
    "large": (1536, 16, 128),  # 493M
    "xlarge": (2048, 20, 128),  # 1.02B
    "small-32k": (768, 6, 64),  # 77.6M
    "large-32k": (2048, 16, 256),  # 841M
    "xlarge-32k": (4096, 24, 512),  # 4.65B
}
"""Name -> d_model, n_layers, num_frequencies."""


def resonance_dimensions(
    size: str | None = None,
    *,
    d_model: int | None = None,
    n_layers: int | None = None,
    num_frequencies: int | None = None,
    mixer: str | None = None,
    n_heads: int | None = None,
    head_dim: int | None = None,
    mlp_dim: int | None = None,
    vocab_size: int = GPT2_VOCAB,
) -> Dimensions:
    """Dimensions of a named size; explicit values override the name.

    Args:
        num_frequencies: oscillators of all groups; default 8 per group without a name.
        mixer: "none" leaves the oscillators out.
        n_heads: groups; default 8. head_dim: channels of a group, must equal d_model / n_heads.
    """
    if size is not None and size not in SIZES:
        raise UserError(f"unknown --size '{size}'{nearest(size, SIZES)}; known: {', '.join(SIZES)}")
    groups = n_heads or GROUPS
    named = (None, None, 8 * groups) if size is None else SIZES[size]
    d_model, n_layers = d_model or named[0], n_layers or named[1]
    if d_model is None or n_layers is None:
        raise UserError(f"give a size: --size {'|'.join(SIZES)}, or --model-dim and --num-layers")
    if mixer != "none":
        num_frequencies = num_frequencies or named[2]
        for flag, number in (("--model-dim", d_model), ("--num-frequencies", num_frequencies)):
            if number % groups:
                raise UserError(f"{flag} {number} is not divisible by the {groups} groups (--n-heads)")
    elif num_frequencies is not None:
        raise UserError(f"--num-frequencies {num_frequencies}: --mixer none has no oscillators; leave one out")
    dims = explicit_dimensions("resonance", d_model, n_layers, groups, head_dim, mlp_dim, vocab_size)
    return replace(dims, num_frequencies=num_frequencies, mixer=mixer if mixer == "none" else dims.mixer)


def check_resonance(shape: Shape) -> None:
    """Check a shape's learned positions and convolutions."""
    structure, width = shape.architecture, shape.conv_width
    if isinstance(width, bool) or not isinstance(width, int) or width < 0 or width == 1:
        raise UserError(f"--conv-width {width!r}: 0 (none), or at least 2 tokens (4 is usual)")
    if not structure.oscillators:
        if width:
            raise UserError(f"--conv-width {width}: only with --arch resonance (here it is {shape.arch})")
        if shape.learned_positions not in (None, structure.learned_positions):
            raise UserError(f"--learned-positions: only resonance lets it be chosen (here it is {shape.arch})")
        return
    if width and shape.mixer == "none":
        raise UserError(f"--conv-width {width}: --mixer none sees no earlier token; leave one out")
    if shape.learned_positions and shape.seq_len > LONGEST_TABLE:
        raise UserError(
            f"--learned-positions: the table has at most {LONGEST_TABLE} rows, but the context length is "
            f"{shape.seq_len}; shorten it, or leave the table out (oscillators need none)"
        )


def if_resonance(
    arch: str,
    size: str | None,
    num_frequencies: int | None,
    vocab_size: int,
    mixer: str | None = None,
    **given: int | None,
) -> Dimensions | None:
    """`resonance_dimensions` from command-line values, or None for another `arch`."""
    if ARCHITECTURES.get(arch).oscillators:
        return resonance_dimensions(size, num_frequencies=num_frequencies, vocab_size=vocab_size, mixer=mixer, **given)
    for flag, value in (("--size", size), ("--num-frequencies", num_frequencies), ("--mixer", mixer)):
        if value is not None:
            raise UserError(f"{flag} {value}: only with --arch resonance (here it is {arch})")
    return None
