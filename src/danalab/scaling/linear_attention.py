"""The delta-rule layers of a model: their sizes, and the layers that have them, with defaults filled in.

With `full_attention_interval` n, layer i (from 0) keeps attention where n divides i + 1; the others have the rule.
The default proportions are Qwen3-Next's: as many key heads as attention has heads,
twice as many value heads, both half as wide as attention's.
"""

from dataclasses import dataclass

from danalab.errors import UserError
from danalab.scaling.shape import Shape

CHUNK = 64
"""Tokens of a chunk in the count of FLOPs."""

_SIZES = ("linear_key_heads", "linear_value_heads", "linear_key_dim", "linear_value_dim", "conv_size")


@dataclass(frozen=True)
class LinearAttention:
    """The delta-rule layers of a model, every default filled in."""

    key_heads: int
    value_heads: int
    """A multiple of `key_heads`."""
    key_dim: int
    value_dim: int
    conv_size: int
    """Taps of the short convolutions [tokens]."""
    layers: tuple[int, ...]
    """Indices of the layers that have it, ascending."""

    @property
    def key_width(self) -> int:
        """Features of all queries, and of all keys."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Features of all values."""
        return self.value_heads * self.value_dim

    def matrix_params(self, d_model: int) -> int:
        """Weights of one layer that take part in matrix products: six maps in, one out."""
        return d_model * (2 * self.key_width + 3 * self.value_width + 2 * self.value_heads)

    @property
    def vector_params(self) -> int:
        """Other weights of one layer: taps, two decay parameters per head, and the gains of a head."""
        taps = (2 * self.key_width + self.value_width) * self.conv_size
        return taps + 2 * self.value_heads + self.value_dim

    def flops_per_token(self) -> int:
        """FLOPs of one layer's rule to train on one token, its maps apart: the products of forward and backward.

        Each product of forward counts three times, and the triangular inverse, which counters do not see, by its one
        product in backward. Elementwise work, convolutions included, does not count.
        """
        key, value = self.key_dim, self.value_dim
        shared = self.key_heads * 4 * CHUNK * key  # k k^T and q k^T, once for all value heads of a key head
        own = self.value_heads * (2 * CHUNK * key + 4 * CHUNK * value + 6 * key * value)
        return 3 * (shared + own) + self.value_heads * 2 * CHUNK * CHUNK


def linear_attention(shape: Shape) -> LinearAttention | None:
    """The delta-rule layers of `shape`, or None where it has none."""
    interval = shape.full_attention_interval
    if interval is not None:
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise UserError(
                f"--full-attention-interval {interval}: 1 (attention in every layer) or more (4: in every fourth)"
            )
        if interval > 1 and not shape.architecture.linear_attention:
            raise UserError(
                f"--full-attention-interval {interval}: {shape.arch} has attention in every layer; qwen3next can have "
                "the delta rule in others"
            )
    if (interval or 1) == 1:
        for name in _SIZES:
            if getattr(shape, name) is not None:
                raise UserError(f"{name}: no layer has the delta rule here; give full_attention_interval, too")
        return None
    layers = tuple(layer for layer in range(shape.n_layers) if (layer + 1) % (interval or 1))
    half = max(1, shape.head_dim // 2)
    key_heads = _size("linear_key_heads", shape.linear_key_heads, shape.n_heads)
    value_heads = _size("linear_value_heads", shape.linear_value_heads, 2 * key_heads)
    if value_heads % key_heads:
        raise UserError(f"linear_key_heads must divide linear_value_heads: {key_heads} does not divide {value_heads}")
    return LinearAttention(
        key_heads,
        value_heads,
        _size("linear_key_dim", shape.linear_key_dim, half),
        _size("linear_value_dim", shape.linear_value_dim, half),
        _size("conv_size", shape.conv_size, 4),
        layers,
    )


def _size(name: str, given: int | None, default: int) -> int:
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UserError(f"{name} must be a positive integer: got {given!r}")
    return given
