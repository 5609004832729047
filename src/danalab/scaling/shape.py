"""The shape of a model: sizes, and the settings of attention, experts, delta rule and oscillators.

`Dimensions` (for planning) and `danalab.models.ModelConfig` (for building) are both a `Shape`; None means: as the
architecture does.
"""

from dataclasses import KW_ONLY, dataclass

from danalab.scaling.architectures import ARCHITECTURES, Architecture

GPT2_VOCAB = 50304
"""GPT-2's 50,257 token ids, padded to a multiple of 64: the vocabulary of the paper's ladder."""

DEFAULT_MODES = 8
"""Oscillators per channel of the resonance model by default."""

EXPERT_SETTINGS = (
    "n_experts", "top_k", "expert_dim", "n_shared_experts", "shared_expert_gate", "decoder_sparse_step",
    "mlp_only_layers",
)  # fmt: skip
"""Fields that say how many experts there are, and where."""
ROUTER_SETTINGS = ("renormalise", "load_balance_loss", "router_z_loss", "router_entropy_loss")
"""Fields of the router and its losses."""
RESONANCE_SETTINGS = ("learned_positions", "conv_width")
"""Fields that are off by default and that only resonance can turn on."""


@dataclass(frozen=True, kw_only=True)
class ExpertSettings:
    """Mixture of experts."""

    n_experts: int | None = None
    """Experts in place of the MLP of each sparse layer."""
    top_k: int | None = None
    """Experts per token."""
    expert_dim: int | None = None
    """Hidden features of one expert; None: by the architecture's rule, mostly mlp_dim."""
    n_shared_experts: int | None = None
    """Experts that every token passes in addition, built as one MLP."""
    shared_expert_gate: bool | None = None
    """Multiply the output of the shared experts by sigmoid(w . x)."""
    decoder_sparse_step: int = 1
    """Layers whose index + 1 is divisible by this have experts."""
    mlp_only_layers: tuple[int, ...] = ()
    """Indices of layers that keep a dense MLP."""
    renormalise: bool = True
    """Divide the weights of a token's experts by their sum."""
    load_balance_loss: float = 0.01
    """Weight of the load-balancing loss, averaged over sparse layers (1 where experts are used evenly)."""
    router_z_loss: float = 0.001
    """Weight of mean(logsumexp(router logits)^2), averaged over sparse layers."""
    router_entropy_loss: float = 0.0
    """Weight of minus the entropy of the mean routing distribution, averaged over sparse layers [nats]."""


@dataclass(frozen=True, kw_only=True)
class DeltaRuleSettings:
    """The gated delta rule in place of attention (qwen3next)."""

    full_attention_interval: int | None = None
    """Layers whose index + 1 is divisible by this have attention, the others the delta rule (published Qwen3-Next: 4);
    None: attention in all."""
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


@dataclass(frozen=True, kw_only=True)
class ResonanceSettings:
    """The resonance model, whose n_heads are groups of channels."""

    num_frequencies: int | None = None
    """Oscillators of all groups; None: 8 per group."""
    mixer: str | None = None
    """"oscillators" (as None), or "none": a control in which each token sees only itself."""
    learned_positions: bool | None = None
    """Add a learned vector for each of the seq_len positions to the embeddings (gpt always does)."""
    conv_width: int = 0
    """Taps of the causal convolution of each channel before the oscillators [tokens]; 0: none."""


@dataclass(frozen=True)
class Shape(ExpertSettings, DeltaRuleSettings, ResonanceSettings):
    """Sizes and settings of a model."""

    arch: str
    """Name in `ARCHITECTURES`."""
    d_model: int
    """Width of the residual stream."""
    n_layers: int
    """Number of blocks."""
    n_heads: int
    """Query heads of each attention."""
    head_dim: int
    """Features of one head; even with rotary embedding. n_heads x head_dim need not be d_model: queries, keys and
    values may be wider or narrower than the residual stream."""
    mlp_dim: int
    """Hidden features of each MLP."""
    vocab_size: int
    """Rows of the embedding and of the head (padding included)."""
    seq_len: int
    """Longest sequence that the model accepts [tokens]."""
    norm_eps: float = 1e-5
    """Added to the variance (LayerNorm) or mean square (RMSNorm)."""
    attention_gate: bool | None = None
    """Multiply attention's output elementwise by sigmoid(gate(x))."""
    n_kv_heads: int | None = None
    """Key and value heads, each shared by n_heads / n_kv_heads query heads; None: n_heads."""
    rope_theta: float = 10000.0
    """Base of the rotary embedding's wavelengths."""
    _: KW_ONLY
    qk_norm: bool | None = None
    """Normalise each query and key head before the rotation."""
    rotary_dim: int | None = None
    """Features of a head that are rotated, the first ones; None: all, but a quarter where layers have the delta
    rule."""
    tied_head: bool | None = None
    """The head is the token embedding."""

    @property
    def architecture(self) -> Architecture:
        """The row of `arch` in the table."""
        return ARCHITECTURES.get(self.arch)

    @property
    def gated(self) -> bool:
        """Whether the output of attention is gated."""
        return self.architecture.attention_gate if self.attention_gate is None else self.attention_gate

    @property
    def qk_normed(self) -> bool:
        """Whether queries and keys are normalised."""
        return self.architecture.qk_norm if self.qk_norm is None else self.qk_norm

    @property
    def tied(self) -> bool:
        """Whether the head is the token embedding."""
        return self.architecture.tied_head if self.tied_head is None else self.tied_head

    @property
    def learns_positions(self) -> bool:
        """Whether there is a vector for each position."""
        return self.architecture.learned_positions if self.learned_positions is None else self.learned_positions

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def modes(self) -> int:
        """Oscillators of one channel (resonance)."""
        if self.mixer == "none":
            return 0
        return DEFAULT_MODES if self.num_frequencies is None else self.num_frequencies // self.n_heads
