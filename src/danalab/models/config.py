"""The shape of a model: a frozen value that checks itself, written to and read from `config.json`. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from danalab.errors import UserError, nearest
from danalab.models.registry import MODELS, Architecture
from danalab.scaling.dimensions import learns_positions, modes_of
from danalab.scaling.linear_attention import LinearAttention, linear_attention
from danalab.scaling.resonance import check_resonance
from danalab.scaling.sparsity import Sparsity, sparsity

NORMS = ("layernorm", "rmsnorm", "rmsnorm-1p")
ROUTER_SETTINGS = ("renormalise", "load_balance_loss", "router_z_loss", "router_entropy_loss")
"""What a router does and is taught, where there are experts."""
MIXERS = ("oscillators", "none")


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides which function a model computes, its weights apart.

    Raises:
        UserError: sizes that do not fit together, or an unknown architecture or norm.
    """

    arch: str
    """Name in `MODELS`."""
    d_model: int
    """Width of the residual stream."""
    n_layers: int
    """Number of blocks."""
    n_heads: int
    """Query heads of each attention."""
    head_dim: int
    """Features of one head; even where rotary embedding turns pairs. n_heads x head_dim need not be d_model: queries,
    keys and values may be wider or narrower than the residual stream."""
    mlp_dim: int
    """Hidden features of each MLP."""
    vocab_size: int
    """Rows of the embedding and of the head (padding included)."""
    seq_len: int
    """Longest sequence that the model accepts [tokens]."""
    norm_eps: float = 1e-5
    """Added to the variance (LayerNorm) or mean square (RMSNorm)."""
    attention_gate: bool | None = None
    """Multiply attention's output elementwise by sigmoid(gate(x)); None: as the architecture does."""
    n_kv_heads: int | None = None
    """Key and value heads, each shared by n_heads / n_kv_heads query heads; None: n_heads."""
    rope_theta: float = 10000.0
    """Base of the rotary embedding's wavelengths."""
    residual_scale: float = 1.0
    """Factor on what each attention and MLP adds to the residual stream."""
    qk_norm: bool | None = None
    """Normalise each query and key head before the rotation; None: as the architecture does."""
    norm: str | None = None
    """"layernorm" or "rmsnorm" (with a gain; with a shift where the architecture has biases), "rmsnorm-1p" (whose gain
    is 1 + weight); None: as the architecture does."""
    num_frequencies: int | None = None
    """Oscillators of all n_heads groups of channels (resonance); None: 8 a group."""
    tied_head: bool | None = None
    """The head is the token embedding; None: as the architecture does."""
    mixer: str | None = None
    """What mixes the tokens of a resonance model: "oscillators" (as None), or "none", a control that hears nothing."""
    learned_positions: bool | None = None
    """Add a learned vector for each of the seq_len positions to the embeddings (resonance; gpt always does); None: as
    the architecture does."""
    conv_width: int = 0
    """Taps of the causal convolution of each channel before the oscillators (resonance) [tokens]; 0: none."""
    n_experts: int | None = None
    """Experts in place of the MLP of each sparse layer; None: as the architecture does (most: none)."""
    top_k: int | None = None
    """Experts that each token is sent to; None: as the architecture does (2)."""
    expert_dim: int | None = None
    """Hidden features of one expert; None: mlp_dim."""
    n_shared_experts: int | None = None
    """Experts that every token passes beside the routed ones, made as one MLP; None: as the architecture does."""
    shared_expert_gate: bool | None = None
    """Multiply what the shared experts say by sigmoid(w . x); None: as the architecture does."""
    decoder_sparse_step: int = 1
    """Every so many layers one has experts: those whose index + 1 it divides."""
    mlp_only_layers: tuple[int, ...] = ()
    """Indices of layers that keep a dense MLP all the same."""
    renormalise: bool = True
    """The weights of a token's experts are divided by their sum."""
    load_balance_loss: float = 0.01
    """Weight of the load-balancing loss, averaged over sparse layers (1 where experts are used evenly)."""
    router_z_loss: float = 0.001
    """Weight of mean(logsumexp(router logits)^2), averaged over sparse layers."""
    router_entropy_loss: float = 0.0
    """Weight of minus the entropy of the mean routing distribution, averaged over sparse layers [nats]."""
    full_attention_interval: int | None = None
    """Every so many layers one has attention, those whose index + 1 it divides; the others have the gated delta rule
    (qwen3next; 4 is the published Qwen3-Next). None: attention in all."""
    linear_key_heads: int | None = None
    """Key heads of the delta rule; None: n_heads."""
    linear_value_heads: int | None = None
    """Value heads of the delta rule, a multiple of its key heads; None: twice as many."""
    linear_key_dim: int | None = None
    """Features of a query or key of the delta rule; None: head_dim / 2."""
    linear_value_dim: int | None = None
    """Features of a value of the delta rule; None: head_dim / 2."""
    conv_size: int | None = None
    """Taps of the short convolutions before the delta rule [tokens]; None: 4."""
    rotary_dim: int | None = None
    """Features of a head that turn with its position, the first ones; None: all of them, but a quarter where layers
    have the delta rule."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arch", MODELS.canonical(self.arch))
        object.__setattr__(self, "mlp_only_layers", tuple(self.mlp_only_layers))
        for name in ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "vocab_size", "seq_len"):
            _require_positive_integer(name, getattr(self, name))
        if self.architecture.structure.oscillators and self.n_heads * self.head_dim != self.d_model:
            raise UserError(
                f"n_heads x head_dim must equal d_model, since {self.arch} shares its channels out to groups: "
                f"{self.n_heads} x {self.head_dim} = {self.n_heads * self.head_dim}, but d_model is {self.d_model}"
            )
        if self.head_dim % 2 and self.architecture.structure.rotary:
            raise UserError(f"head_dim must be even (rotary embedding turns pairs of features): got {self.head_dim}")
        if self.num_frequencies is not None:
            _require_positive_integer("num_frequencies", self.num_frequencies)
            if not self.architecture.structure.oscillators:
                raise UserError(f"num_frequencies {self.num_frequencies}: {self.arch} has no oscillators")
            if self.num_frequencies % self.n_heads:
                raise UserError(
                    f"n_heads must divide num_frequencies: {self.n_heads} does not divide {self.num_frequencies}"
                )
        if self.mixer is not None:
            if not self.architecture.structure.oscillators:
                raise UserError(f"mixer '{self.mixer}': only resonance lets it be chosen (here it is {self.arch})")
            if self.mixer not in MIXERS:
                raise UserError(
                    f"unknown mixer '{self.mixer}'{nearest(self.mixer, MIXERS)}; known: {', '.join(MIXERS)}"
                )
            if self.mixer == "none" and self.num_frequencies is not None:
                raise UserError(f"num_frequencies {self.num_frequencies}: mixer 'none' has no oscillators")
        if self.architecture.structure.oscillators:
            for name in ("attention_gate", "n_kv_heads", "qk_norm"):
                if getattr(self, name):
                    raise UserError(f"{name}: {self.arch} has no attention; leave it out")
        if self.n_kv_heads is not None:
            _require_positive_integer("n_kv_heads", self.n_kv_heads)
            if self.n_heads % self.n_kv_heads:
                raise UserError(f"n_kv_heads must divide n_heads: {self.n_kv_heads} does not divide {self.n_heads}")
        for name in ("norm_eps", "rope_theta"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")
        if self.norm is not None and self.norm not in NORMS:
            raise UserError(f"unknown norm '{self.norm}'{nearest(self.norm, NORMS)}; known: {', '.join(NORMS)}")
        if self.biased and self.norm_kind != "layernorm":
            raise UserError(f"norm '{self.norm}': {self.arch} has biases in its norms, which only a layernorm can have")
        for name in ("load_balance_loss", "router_z_loss", "router_entropy_loss"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name} must be finite and not negative: got {getattr(self, name)}")
        sparsity(self)  # refuses what does not fit
        linear_attention(self)
        check_resonance(self)
        if self.rotary_dim is not None:
            _require_positive_integer("rotary_dim", self.rotary_dim)
            if not self.architecture.structure.rotary:
                raise UserError(f"rotary_dim {self.rotary_dim}: {self.arch} has no rotary positions; leave it out")
            if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
                raise UserError(f"rotary_dim must be even and at most head_dim {self.head_dim}: got {self.rotary_dim}")

    @property
    def architecture(self) -> Architecture:
        """The registry's entry for `arch`."""
        return MODELS.get(self.arch)

    @property
    def gated(self) -> bool:
        """Whether attention is gated: `attention_gate`, or the architecture's way."""
        return self.architecture.structure.attention_gate if self.attention_gate is None else self.attention_gate

    @property
    def qk_normed(self) -> bool:
        """Whether queries and keys are normalised: `qk_norm`, or the architecture's way."""
        return self.architecture.structure.qk_norm if self.qk_norm is None else self.qk_norm

    @property
    def tied(self) -> bool:
        """Whether the head is the token embedding: `tied_head`, or the architecture's way."""
        return self.architecture.structure.tied_head if self.tied_head is None else self.tied_head

    @property
    def biased(self) -> bool:
        """Whether maps (the head and the gate apart) and norms have a bias."""
        return self.architecture.structure.biases

    @property
    def kv_heads(self) -> int:
        """Key and value heads: `n_kv_heads`, or `n_heads`."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def modes(self) -> int:
        """Oscillators of one channel (resonance)."""
        return modes_of(self)

    @property
    def learns_positions(self) -> bool:
        """Whether there is a vector for each position: `learned_positions`, or the architecture's way."""
        return learns_positions(self)

    @property
    def sparsity(self) -> Sparsity | None:
        """Its experts and the layers that have them; None where it has none."""
        return sparsity(self)

    @property
    def linear_attention(self) -> LinearAttention | None:
        """Its delta-rule layers; None where it has none."""
        return linear_attention(self)

    @property
    def rotated(self) -> int:
        """Features of a head that are rotated: `rotary_dim`, or the rule that it stands for."""
        if self.rotary_dim is not None:
            return self.rotary_dim
        return self.head_dim if self.linear_attention is None else 2 * -(-self.head_dim // 8)

    @property
    def norm_kind(self) -> str:
        """`norm`, or the architecture's way."""
        return self.norm or self.architecture.norm

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` is the way back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """The configuration that `as_dict` described.

        Raises:
            UserError: a setting is unknown or a required one is absent.
        """
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise UserError(
                    f"unknown model setting '{name}'{nearest(name, known)}; known: {', '.join(sorted(known))}"
                )
        try:
            return cls(**values)
        except TypeError as error:
            raise UserError(f"model configuration: {error}") from None


def _require_positive_integer(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name} must be a positive integer: got {value!r}")
