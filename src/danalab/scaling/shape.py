"""The shape of a model: sizes, and the settings of attention, experts, delta rule and oscillators.

`Dimensions` (for planning) and `danalab.models.ModelConfig` (for building) are both a `Shape`; None means: as the
architecture does. `sparsity(shape)` and `linear_attention(shape)` are its experts and its delta-rule layers:

    experts       in layers whose index + 1 `decoder_sparse_step` divides, except `mlp_only_layers`
    delta rule    in layers whose index + 1 `full_attention_interval` does not divide; default sizes are Qwen3-Next's:
                  as many key heads as attention has heads, twice as many value heads, both half as wide
"""

from collections import Counter
from dataclasses import KW_ONLY, dataclass
from functools import cache

from danalab.errors import UserError
from danalab.scaling.architectures import ARCHITECTURES, Architecture

GPT2_VOCAB = 50304
"""GPT-2's 50,257 token ids, padded to a multiple of 64: the vocabulary of the paper's ladder."""
DEFAULT_MODES = 8
"""Oscillators per channel of the resonance model by default."""
MAX_LAYERS = 100_000
"""Limit on lists of layers."""
CHUNK = 64
"""Tokens of a chunk in the count of FLOPs."""
EXPERT_SETTINGS = (
    "n_experts", "top_k", "expert_dim", "n_shared_experts", "shared_expert_gate", "decoder_sparse_step",
    "mlp_only_layers",
)  # fmt: skip
"""Fields that say how many experts there are, and where."""
ROUTER_SETTINGS = ("renormalise", "load_balance_loss", "router_z_loss", "router_entropy_loss")
"""Fields of the router and its losses."""
RESONANCE_SETTINGS = ("learned_positions", "conv_width")
"""Fields that are off by default and that only resonance can turn on."""
_DELTA_RULE_SIZES = ("linear_key_heads", "linear_value_heads", "linear_key_dim", "linear_value_dim", "conv_size")


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


@dataclass(frozen=True)
class Sparsity:
    """The experts of a model, every default filled in."""

    n_experts: int
    """Routed experts of a layer that has them."""
    top_k: int
    """Experts that a token is sent to."""
    expert_dim: int
    """Hidden width of an expert."""
    shared_dim: int
    """Hidden width of all shared experts together; 0: none."""
    shared_gate: bool
    """The output of the shared experts is multiplied by sigmoid(w . x)."""
    layers: tuple[int, ...]
    """Indices of the layers that have experts, ascending."""


def sparsity(shape: Shape) -> Sparsity | None:
    """The experts of `shape`, or None where it has none."""
    structure = shape.architecture
    if shape.n_layers > MAX_LAYERS:
        raise UserError(f"--n-layers {shape.n_layers}: at most {MAX_LAYERS:,} are possible")
    n_experts = structure.n_experts if shape.n_experts is None else shape.n_experts
    if n_experts < 0 or (shape.n_experts is not None and n_experts < 1):
        raise UserError(f"--n-experts {n_experts}: at least 1 is needed; leave it out for a model without experts")
    if n_experts == 0:
        for name in EXPERT_SETTINGS:
            if getattr(shape, name) not in (None, False, (), 1 if name == "decoder_sparse_step" else None):
                raise UserError(f"--{name.replace('_', '-')}: {shape.arch} has no experts here; give --n-experts, too")
        return None
    if structure.oscillators:
        raise UserError(f"--n-experts {n_experts}: {shape.arch} has no experts; leave it out")
    top_k = min(structure.top_k, n_experts) if shape.top_k is None else shape.top_k
    if not 1 <= top_k <= n_experts:
        raise UserError(f"--top-k {top_k}: a token can be sent to 1..{n_experts} of the {n_experts} experts")
    expert_dim = structure.expert_dim(shape.mlp_dim) if shape.expert_dim is None else shape.expert_dim
    if expert_dim < 1:
        raise UserError(f"--expert-dim {expert_dim}: at least 1 is needed")
    n_shared = structure.n_shared_experts if shape.n_shared_experts is None else shape.n_shared_experts
    if n_shared < 0:
        raise UserError(f"--n-shared-experts {n_shared}: 0 or more are possible")
    gate = structure.shared_expert_gate if shape.shared_expert_gate is None else shape.shared_expert_gate
    if shape.shared_expert_gate and n_shared == 0:
        raise UserError("--shared-expert-gate: there are no shared experts; give --n-shared-experts 1")
    return Sparsity(n_experts, top_k, expert_dim, n_shared * expert_dim, gate and n_shared > 0, _layers(shape))


def _layers(shape: Shape) -> tuple[int, ...]:
    step = shape.decoder_sparse_step
    if step < 1:
        raise UserError(f"--decoder-sparse-step {step}: at least 1 is needed (1: every layer has experts)")
    for layer in shape.mlp_only_layers:
        if not 0 <= layer < shape.n_layers:
            raise UserError(f"--mlp-only-layers {layer}: the model has the layers 0..{shape.n_layers - 1}")
    layers = tuple(i for i in range(shape.n_layers) if (i + 1) % step == 0 and i not in shape.mlp_only_layers)
    if not layers:
        raise UserError(f"--decoder-sparse-step {step} and --mlp-only-layers leave none of the {shape.n_layers} layers")
    return layers


def active_mlp_params(shape: Shape) -> int:
    """Matrix weights of all layers' MLPs that a token passes through: its experts, routers and gates."""
    matrices = shape.architecture.mlp_matrices
    sparse = sparsity(shape)
    if sparse is None:
        return shape.n_layers * matrices * shape.d_model * shape.mlp_dim
    hidden = sparse.top_k * sparse.expert_dim + sparse.shared_dim
    each = shape.d_model * (matrices * hidden + sparse.n_experts + sparse.shared_gate)
    dense = (shape.n_layers - len(sparse.layers)) * matrices * shape.d_model * shape.mlp_dim
    return len(sparse.layers) * each + dense


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
            raise UserError(f"--full-attention-interval {interval}: it must be 1 (attention in every layer) or more")
        if interval > 1 and not shape.architecture.linear_mixer_class:
            raise UserError(
                f"--full-attention-interval {interval}: {shape.arch} has attention in every layer; qwen3next can have "
                "the delta rule in others"
            )
    if (interval or 1) == 1:
        for name in _DELTA_RULE_SIZES:
            if getattr(shape, name) is not None:
                raise UserError(f"{name}: no layer has the delta rule here; give full_attention_interval, too")
        return None
    layers = tuple(layer for layer in range(shape.n_layers) if (layer + 1) % (interval or 1))
    half = max(1, shape.head_dim // 2)
    key_heads = _size("linear_key_heads", shape.linear_key_heads, shape.n_heads)
    value_heads = _size("linear_value_heads", shape.linear_value_heads, 2 * key_heads)
    if value_heads % key_heads:
        raise UserError(f"linear_key_heads must divide linear_value_heads: {key_heads} does not divide {value_heads}")
    key_dim = _size("linear_key_dim", shape.linear_key_dim, half)
    value_dim = _size("linear_value_dim", shape.linear_value_dim, half)
    return LinearAttention(key_heads, value_heads, key_dim, value_dim, _size("conv_size", shape.conv_size, 4), layers)


def _size(name: str, given: int | None, default: int) -> int:
    if given is None:
        return default
    require_positive_integer(name, given)
    return given


def require_positive_integer(name: str, value: object) -> None:
    """Refuse a setting that is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name} is {value!r}; it must be a positive integer")


Weight = tuple[str, tuple[int, ...]]
"""Kind and shape of a parameter."""


def attention_layers(shape: Shape) -> int:
    """Layers with attention, or the architecture's mixer; the others have the delta rule."""
    linear = linear_attention(shape)
    return shape.n_layers - (0 if linear is None else len(linear.layers))


@cache
def weights(shape: Shape) -> Counter[Weight]:
    """How many parameters of each kind and shape the model has as built; the kinds are those of its optimizers."""
    structure, linear, sparse, d = shape.architecture, linear_attention(shape), sparsity(shape), shape.d_model
    found: Counter[Weight] = Counter()

    def add(kind: str, *dims: int, times: int = 1) -> None:
        found[kind, dims] += times

    def add_map(outputs: int, inputs: int, times: int = 1) -> None:
        add("matrix", outputs, inputs, times=times)
        if structure.biases:
            add("vector", outputs, times=times)

    def add_norm(width: int, times: int = 1) -> None:
        add("vector", width, times=times * (2 if structure.biases else 1))

    def add_mlp(width: int, layers: int) -> None:
        add_map(width, d, layers * (structure.mlp_matrices - 1))
        add_map(d, width, layers)

    add("embedding", shape.vocab_size, d)
    if shape.learns_positions:
        add("embedding", shape.seq_len, d)
    if not shape.tied:
        add("head", shape.vocab_size, d)
    add_norm(d, 2 * shape.n_layers + 1)
    layers = shape.n_layers - attention_layers(shape)
    if linear is not None:
        for outputs, each in ((linear.key_width, 2), (linear.value_width, 2), (linear.value_heads, 2)):
            add("matrix", outputs, d, times=each * layers)
        add("matrix", d, linear.value_width, times=layers)
        add("vector", linear.key_width, linear.conv_size, times=2 * layers)
        add("vector", linear.value_width, linear.conv_size, times=layers)
        add("vector", linear.value_heads, times=2 * layers)
        add("vector", linear.value_dim, times=layers)
    layers = attention_layers(shape)
    if structure.oscillators:
        add("matrix", d, d, times=3 * layers)
        if shape.modes:
            add("vector", shape.n_heads, shape.modes, times=2 * layers)
            add("vector", d, shape.modes, times=2 * layers)
            add("vector", d, times=layers)
            if shape.conv_width:
                add("vector", d, shape.conv_width, times=layers)
    else:
        width, kv_width = shape.n_heads * shape.head_dim, shape.kv_heads * shape.head_dim
        add_map(width, d, layers)
        add_map(kv_width, d, 2 * layers)
        add_map(d, width, layers)
        if shape.gated:
            add("matrix", width, d, times=layers)
        if shape.qk_normed:
            add_norm(shape.head_dim, 2 * layers)
    layers = 0 if sparse is None else len(sparse.layers)
    add_mlp(shape.mlp_dim, shape.n_layers - layers)
    if sparse is not None:
        add("router", sparse.n_experts, d, times=layers)
        add("experts", sparse.n_experts, sparse.expert_dim, d, times=layers * (structure.mlp_matrices - 1))
        add("experts", sparse.n_experts, d, sparse.expert_dim, times=layers)
        if sparse.shared_dim:
            add_mlp(sparse.shared_dim, layers)
        if sparse.shared_gate:
            add("router", 1, d, times=layers)
    return +found
