"""The configuration of a model: a frozen, validated value, written to and read from `config.json`. Needs no torch."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from danalab.errors import UserError, nearest
from danalab.files import validated
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.dimensions import check_resonance
from danalab.scaling.shape import LinearAttention, Shape, Sparsity, linear_attention, require_positive_integer, sparsity

NORMS = ("layernorm", "rmsnorm", "rmsnorm-1p")
MIXERS = ("oscillators", "none")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Shape):
    """Everything that determines the function of a model, except its weights.

    Sizes and settings are those of `Shape`; all but the first are best given by name.

    Raises:
        UserError: sizes that do not fit together, or an unknown architecture or norm.
    """

    residual_scale: float = 1.0
    """Factor on what each attention and MLP adds to the residual stream."""
    norm: str | None = None
    """"layernorm" or "rmsnorm" (with a gain; with a shift where the architecture has biases), "rmsnorm-1p" (whose gain
    is 1 + weight); None: as the architecture does."""

    dropout: float = 0.0
    """Probability that a feature of the embedding, or of what an attention or MLP adds, is 0 in training; the others
    are divided by 1 - dropout."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arch", ARCHITECTURES.canonical(self.arch))
        object.__setattr__(self, "mlp_only_layers", tuple(self.mlp_only_layers))
        for name in ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "vocab_size", "seq_len"):
            require_positive_integer(name, getattr(self, name))
        for name in ("norm_eps", "rope_theta"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be positive")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
        if self.norm is not None and self.norm not in NORMS:
            raise UserError(f"unknown norm '{self.norm}'{nearest(self.norm, NORMS)}; known: {', '.join(NORMS)}")
        if self.biased and self.norm_kind != "layernorm":
            raise UserError(f"norm '{self.norm}': {self.arch} has biases in its norms, which only a layernorm can have")
        if self.architecture.oscillators:
            self._check_oscillators()
        else:
            self._check_attention()
        for name in ("load_balance_loss", "router_z_loss", "router_entropy_loss"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name} is {getattr(self, name)}; it must be finite and not negative")
        sparsity(self)  # each raises UserError for contradictory settings
        linear_attention(self)
        check_resonance(self)

    def _check_attention(self) -> None:
        if self.head_dim % 2 and self.architecture.rotary:
            raise UserError(f"head_dim is {self.head_dim}; it must be even: rotary embedding turns pairs of features")
        if self.num_frequencies is not None:
            raise UserError(f"num_frequencies {self.num_frequencies}: {self.arch} has no oscillators")
        if self.mixer is not None:
            raise UserError(f"mixer '{self.mixer}': only resonance lets it be chosen (here it is {self.arch})")
        if self.n_kv_heads is not None:
            require_positive_integer("n_kv_heads", self.n_kv_heads)
            if self.n_heads % self.n_kv_heads:
                raise UserError(f"n_kv_heads must divide n_heads: {self.n_kv_heads} does not divide {self.n_heads}")
        if self.rotary_dim is not None:
            require_positive_integer("rotary_dim", self.rotary_dim)
            if not self.architecture.rotary:
                raise UserError(f"rotary_dim {self.rotary_dim}: {self.arch} has no rotary positions; leave it out")
            if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
                raise UserError(
                    f"rotary_dim is {self.rotary_dim}; it must be even and at most head_dim {self.head_dim}"
                )

    def _check_oscillators(self) -> None:
        if self.n_heads * self.head_dim != self.d_model:
            raise UserError(
                f"n_heads x head_dim must equal d_model, since {self.arch} divides its channels into groups: "
                f"{self.n_heads} x {self.head_dim} = {self.n_heads * self.head_dim}, but d_model is {self.d_model}"
            )
        for name in ("attention_gate", "n_kv_heads", "qk_norm", "rotary_dim"):
            if getattr(self, name):
                raise UserError(f"{name}: {self.arch} has no attention; leave it out")
        if self.mixer is not None and self.mixer not in MIXERS:
            raise UserError(f"unknown mixer '{self.mixer}'{nearest(self.mixer, MIXERS)}; known: {', '.join(MIXERS)}")
        if self.num_frequencies is not None:
            require_positive_integer("num_frequencies", self.num_frequencies)
            if self.num_frequencies % self.n_heads:
                raise UserError(
                    f"n_heads must divide num_frequencies: {self.n_heads} does not divide {self.num_frequencies}"
                )
            if self.mixer == "none":
                raise UserError(f"num_frequencies {self.num_frequencies}: mixer 'none' has no oscillators")

    @property
    def biased(self) -> bool:
        """Whether linear maps (except head and gate) and norms have a bias."""
        return self.architecture.biases

    @property
    def sparsity(self) -> Sparsity | None:
        """The experts and the layers that have them; None where there are none."""
        return sparsity(self)

    @property
    def linear_attention(self) -> LinearAttention | None:
        """The delta-rule layers; None where there are none."""
        return linear_attention(self)

    @property
    def rotated(self) -> int:
        """Features of a head that are rotated."""
        if self.rotary_dim is not None:
            return self.rotary_dim
        return self.head_dim if self.linear_attention is None else 2 * -(-self.head_dim // 8)

    @property
    def norm_kind(self) -> str:
        """The kind of norm: `norm`, or the architecture's."""
        return self.norm or self.architecture.norm

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: object = "model configuration") -> "ModelConfig":
        """The configuration that `as_dict` returned.

        `origin`: what the values are from, for messages.
        UserError: a setting is unknown or of another type, or a required one is missing.
        """
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise UserError(
                    f"{origin}: unknown model setting '{name}'{nearest(name, known)}; known: {', '.join(sorted(known))}"
                )
        return validated(cls, dict(values), origin, strict=True)


CHECKPOINTING = ("none", "full", "every-n:K", "selective")


def checkpointing_rule(mode: str) -> Callable[[int], str]:
    """A function from the index of a layer to its mode of checkpointing: "none", "full" or "selective".

    `mode`: "none"; "full" (keep only each block's input); "every-n:K" ("full" for blocks 0, K, 2K, ...); "selective"
    (keep matrix products and attention outputs, recompute the rest).
    """
    if mode in ("none", "full", "selective"):
        return lambda layer: mode
    name, _, count = mode.partition(":")
    if name == "every-n" and count.isdigit() and int(count) > 0:
        return lambda layer: "full" if layer % int(count) == 0 else "none"
    hint = nearest(mode, CHECKPOINTING)
    raise UserError(f"unknown activation checkpointing '{mode}'{hint}; known: {', '.join(CHECKPOINTING)} (K >= 1)")
