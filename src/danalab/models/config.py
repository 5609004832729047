"""The shape of a model: the one class that has it, and what follows from it: parameters, FLOPs. Counting imports torch.

`ModelConfig.from_heads("enoki", 12)` is a size of the paper's ladder. None means: as the architecture does.

    experts       in layers whose index + 1 `decoder_sparse_step` divides, except `mlp_only_layers`
    delta rule    in layers whose index + 1 `full_attention_interval` does not divide; default sizes are Qwen3-Next's:
                  as many key heads as attention has heads, twice as many value heads, both half as wide

There are two counts of parameters: the *size law* of the paper (12 d_model^2 n_layers, what learning rates and horizons
were fitted against) and the *exact* count of the model as built. They agree for enoki except for its gains; a gated
qwen3 has 14 d_model^2 per layer.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from typing_extensions import TypedDict

from danalab.errors import UserError
from danalab.files import validated
from danalab.models.architectures import Architecture, architecture
from danalab.tables import key_of, load

GPT2_VOCAB = 50304
"""GPT-2's 50,257 token ids, padded to a multiple of 64: the vocabulary of the paper's ladder."""
CHUNK = 64
"""Tokens of a chunk of the delta rule in the count of FLOPs."""
DEFAULT_MODES = 8
"""Oscillators per channel of the resonance model by default."""
GROUPS = 8
"""Groups of channels of the resonance model by default."""
LONGEST_TABLE = 32768
"""Rows of a table of learned positions of the resonance model, at most."""
Size = Annotated[int, Ge(1)]
Weighting = Annotated[float, Ge(0), Lt(math.inf)]
ATTENTION_SETTINGS = (
    "attention_gate",
    "n_kv_heads",
    "qk_norm",
    "rotary_dim",
    "n_experts",
    "full_attention_interval",
)
"""Fields that no model of oscillators has."""
EXPERT_SETTINGS = (
    "top_k",
    "expert_dim",
    "n_shared_experts",
    "shared_expert_gate",
    "mlp_only_layers",
    "load_balance_loss",
    "router_z_loss",
    "router_entropy_loss",
)
"""Fields that only a model with experts has."""
DELTA_RULE_SETTINGS = (
    "linear_key_heads",
    "linear_value_heads",
    "linear_key_dim",
    "linear_value_dim",
    "conv_size",
)
"""Fields that only a model with delta-rule layers has."""
SIZES = {
    "small": (512, 8, 64),  # 48.6M parameters with a tied head and 50,304 ids
    "medium": (1024, 12, 128),  # 191M
    "large": (1536, 16, 128),  # 493M
    "xlarge": (2048, 20, 128),  # 1.02B
    "small-32k": (768, 6, 64),  # 77.6M
    "large-32k": (2048, 16, 256),  # 841M
    "xlarge-32k": (4096, 24, 512),  # 4.65B
}
"""Resonance: name -> d_model, n_layers, num_frequencies. The sizes "-32k" are of the FineWeb-Edu 32k script, which
counts them as 50M, 500M and 1B."""


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

    def flops_per_token(self) -> int:
        """FLOPs of one layer's rule to train on one token, its maps apart: the products of forward and backward.

        Each product of forward counts three times, and the triangular inverse, which counters do not see, by its one
        product in backward. Elementwise work, convolutions included, does not count.
        """
        key, value = self.key_dim, self.value_dim
        shared = self.key_heads * 4 * CHUNK * key  # k k^T and q k^T, once for all value heads of a key head
        own = self.value_heads * (2 * CHUNK * key + 4 * CHUNK * value + 6 * key * value)
        return 3 * (shared + own) + self.value_heads * 2 * CHUNK * CHUNK


@dataclass(frozen=True)
class ModelConfig:
    """Everything that determines the function of a model, except its weights.

    Raises:
        UserError: sizes that do not fit together, or an unknown architecture or norm.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    arch: str
    """Name in `danalab.models.architectures`."""
    d_model: Size
    """Width of the residual stream."""
    n_layers: Annotated[int, Ge(1), Le(2000)]
    """Number of blocks."""
    n_heads: Size
    """Query heads of each attention; resonance: groups of channels that share frequencies."""
    head_dim: Size
    """Features of one head; even with rotary embedding. n_heads x head_dim need not be d_model: queries, keys and
    values may be wider or narrower than the residual stream."""
    mlp_dim: Size
    """Hidden features of each MLP."""
    vocab_size: Size
    """Rows of the embedding and of the head (padding included)."""
    seq_len: Size
    """Longest sequence that the model accepts [tokens]."""
    norm_eps: Annotated[float, Gt(0)] = 1e-5
    """Added to the variance (LayerNorm) or mean square (RMSNorm)."""
    attention_gate: bool | None = None
    """Multiply attention's output elementwise by sigmoid(gate(x))."""
    n_kv_heads: Size | None = None
    """Key and value heads, each shared by n_heads / n_kv_heads query heads; None: n_heads."""
    rope_theta: Annotated[float, Gt(0)] = 10000.0
    """Base of the rotary embedding's wavelengths."""
    _: KW_ONLY
    qk_norm: bool | None = None
    """Normalise each query and key head before the rotation."""
    rotary_dim: Size | None = None
    """Features of a head that are rotated, the first ones; None: all, but a quarter where layers have the delta
    rule."""
    tied_head: bool | None = None
    """The head is the token embedding."""
    norm: Literal["layernorm", "rmsnorm", "rmsnorm-1p"] | None = None
    """"layernorm" or "rmsnorm" (with a gain; with a shift where the architecture has biases), "rmsnorm-1p" (whose gain
    is 1 + weight)."""
    residual_scale: float = 1.0
    """Factor on what each attention and MLP adds to the residual stream."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Probability that a feature of the embedding, or of what an attention or MLP adds, is 0 in training; the others
    are divided by 1 - dropout."""

    n_experts: Annotated[int, Ge(0)] | None = None
    """Experts in place of the MLP of each sparse layer."""
    top_k: Size | None = None
    """Experts per token."""
    expert_dim: Size | None = None
    """Hidden features of one expert; None: by the architecture's rule, mostly mlp_dim."""
    n_shared_experts: Annotated[int, Ge(0)] | None = None
    """Experts that every token passes in addition, built as one MLP."""
    shared_expert_gate: bool | None = None
    """Multiply the output of the shared experts by sigmoid(w . x)."""
    decoder_sparse_step: Size = 1
    """Layers whose index + 1 is divisible by this have experts."""
    mlp_only_layers: tuple[Annotated[int, Ge(0)], ...] = ()
    """Indices of layers that keep a dense MLP."""
    renormalise: bool = True
    """Divide the weights of a token's experts by their sum."""
    load_balance_loss: Weighting = 0.01
    """Weight of the load-balancing loss, averaged over sparse layers (1 where experts are used evenly)."""
    router_z_loss: Weighting = 0.001
    """Weight of mean(logsumexp(router logits)^2), averaged over sparse layers."""
    router_entropy_loss: Weighting = 0.0
    """Weight of minus the entropy of the mean routing distribution, averaged over sparse layers [nats]."""

    full_attention_interval: Size | None = None
    """Layers whose index + 1 is divisible by this have attention, the others the delta rule (published Qwen3-Next: 4);
    None: attention in all."""
    linear_key_heads: Size | None = None
    """Key heads of the delta rule; None: n_heads."""
    linear_value_heads: Size | None = None
    """Value heads of the delta rule, a multiple of its key heads; None: twice as many."""
    linear_key_dim: Size | None = None
    """Features of a query or key of the delta rule; None: head_dim / 2."""
    linear_value_dim: Size | None = None
    """Features of a value of the delta rule; None: head_dim / 2."""
    conv_size: Size | None = None
    """Taps of the short convolutions before the delta rule [tokens]; None: 4."""

    num_frequencies: Size | None = None
    """Resonance: oscillators of all groups; None: 8 per group."""
    mixer: Literal["oscillators", "none"] | None = None
    """Resonance: "oscillators" (as None), or "none", a control in which each token sees only itself."""
    learned_positions: bool | None = None
    """Resonance: add a learned vector for each of the seq_len positions to the embeddings (gpt always does)."""

    @classmethod
    def from_heads(
        cls, arch: str, heads: int, vocab_size: int = GPT2_VOCAB, seq_len: int = 2048, **settings: Any
    ) -> "ModelConfig":
        """The model of `arch` with this number of attention heads; `settings`: other fields.

        UserError: unknown architecture, or too few heads for one layer.
        Source: arXiv 2602.05298, the Enoki and Qwen3 ladders; the others: see `danalab.models.architectures`.
        """
        return cls(arch, **sizes_by_heads(arch, heads), vocab_size=vocab_size, seq_len=seq_len, **settings)

    def __post_init__(self) -> None:
        for name, value in validated(_schema(), vars(self), "model", strict=True).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "arch", architecture(self.arch).name)
        if self.architecture.biases and self.choice("norm") != "layernorm":
            raise UserError(
                f"norm '{self.norm}': {self.arch} has biases in its norms, which only a layernorm can have"
            )
        if self.architecture.oscillators:
            self._refuse(ATTENTION_SETTINGS, "is for models with attention")
            if self.n_heads * self.head_dim != self.d_model:
                raise UserError(
                    f"n_heads x head_dim must equal d_model, since {self.arch} divides its channels into groups: "
                    f"{self.n_heads} x {self.head_dim} = {self.n_heads * self.head_dim}, but d_model is {self.d_model}"
                )
            modes = self.num_frequencies
            if modes is not None and (self.mixer == "none" or modes % self.n_heads):
                raise UserError(
                    f"--num-frequencies {modes}: must be divisible by the {self.n_heads} groups; leave it out where "
                    "--mixer none has no oscillators"
                )
            if self.learned_positions and self.seq_len > LONGEST_TABLE:
                raise UserError(
                    f"--learned-positions: the table has at most {LONGEST_TABLE} rows, but the context length is "
                    f"{self.seq_len}; shorten it, or leave the table out (oscillators need none)"
                )
        else:
            self._refuse(("num_frequencies", "mixer", "learned_positions"), "is for resonance")
            if self.head_dim % 2 and self.architecture.rotary:
                raise UserError(
                    f"head_dim is {self.head_dim}; it must be even: rotary embedding turns pairs of features"
                )
            if self.n_heads % self.kv_heads:
                raise UserError(f"--n-kv-heads {self.n_kv_heads} does not divide the {self.n_heads} heads")
            if self.rotary_dim and (self.rotary_dim % 2 or self.rotary_dim > self.head_dim):
                raise UserError(
                    f"rotary_dim is {self.rotary_dim}; it must be even and at most head_dim {self.head_dim}"
                )
        _ = self.sparsity, self.linear_attention  # which refuse contradictory settings

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        """Refuse settings that have no meaning in this model."""
        for name in names:
            if getattr(self, name) not in (None, False, getattr(type(self), name)):
                raise UserError(f"--{name.replace('_', '-')}: {reason}, not {self.arch} as it is here")

    @property
    def architecture(self) -> Architecture:
        """The row of `arch` in the table."""
        return architecture(self.arch)

    def choice(self, name: str) -> Any:
        """A setting, or the architecture's of the same name where it is None."""
        value = getattr(self, name)
        return getattr(self.architecture, name) if value is None else value

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

    @property
    def rotated(self) -> int:
        """Features of a head that are rotated."""
        if self.rotary_dim is not None:
            return self.rotary_dim
        return self.head_dim if self.linear_attention is None else 2 * -(-self.head_dim // 8)

    @cached_property
    def sparsity(self) -> Sparsity | None:
        """The experts and the layers that have them; None where there are none."""
        n_experts = self.choice("n_experts")
        if n_experts == 0:
            self._refuse(EXPERT_SETTINGS, "is for models with --n-experts")
            return None
        top_k = min(self.architecture.top_k, n_experts) if self.top_k is None else self.top_k
        if top_k > n_experts:
            raise UserError(
                f"--top-k {top_k}: a token can be sent to 1..{n_experts} of the {n_experts} experts"
            )
        layers = tuple(
            layer
            for layer in range(self.n_layers)
            if (layer + 1) % self.decoder_sparse_step == 0 and layer not in self.mlp_only_layers
        )
        if not layers or max(self.mlp_only_layers, default=0) >= self.n_layers:
            raise UserError(
                f"--decoder-sparse-step {self.decoder_sparse_step} and --mlp-only-layers must be among the layers "
                f"0..{self.n_layers - 1} and leave some of them with experts"
            )
        expert_dim = self.expert_dim or self.architecture.expert_dim(self.mlp_dim)
        shared_dim = self.choice("n_shared_experts") * expert_dim
        gate = self.choice("shared_expert_gate") and shared_dim > 0
        return Sparsity(n_experts, top_k, expert_dim, shared_dim, gate, layers)

    @cached_property
    def linear_attention(self) -> LinearAttention | None:
        """The delta-rule layers; None where there are none."""
        interval = self.full_attention_interval or 1
        if interval == 1:
            self._refuse(DELTA_RULE_SETTINGS, "is for models with full_attention_interval")
            return None
        if not self.architecture.linear_mixer_class:
            raise UserError(
                f"--full-attention-interval {interval}: {self.arch} has attention in every layer; qwen3next can have "
                "the delta rule in others"
            )
        key_heads, half = self.linear_key_heads or self.n_heads, max(1, self.head_dim // 2)
        value_heads = self.linear_value_heads or 2 * key_heads
        if value_heads % key_heads:
            raise UserError(f"linear_key_heads {key_heads} must divide linear_value_heads {value_heads}")
        layers = tuple(layer for layer in range(self.n_layers) if (layer + 1) % interval)
        key_dim, value_dim = self.linear_key_dim or half, self.linear_value_dim or half
        return LinearAttention(key_heads, value_heads, key_dim, value_dim, self.conv_size or 4, layers)

    @property
    def attention_layers(self) -> int:
        """Layers with attention, or the architecture's mixer; the others have the delta rule."""
        return self.n_layers - (0 if self.linear_attention is None else len(self.linear_attention.layers))

    # ---- counts ----

    @property
    def non_emb_params(self) -> int:
        """The size law P that learning rates were fitted against; 12 d_model^2 n_layers at the standard widths.

        Only the experts that a token passes through count.
        """
        # The paper's law for qwen3 ignores its third MLP matrix and its gate; the LRs were fitted with it.
        used = parameter_count(self, PRODUCTS, active=True)
        if not self.architecture.size_law:
            return used
        without = {name: getattr(type(self), name) for name in EXPERT_SETTINGS} | {"n_experts": 0}
        dense = replace(self, **without)  # pyright: ignore[reportArgumentType]
        return 12 * self.d_model**2 * self.n_layers * used // parameter_count(dense, PRODUCTS)

    @property
    def total_params(self) -> int:
        """The size law with token embedding and head (once where they are one), which determines the horizon."""
        return self.non_emb_params + (1 if self.choice("tied_head") else 2) * self.d_model * self.vocab_size

    @property
    def exact_params(self) -> int:
        """Parameters of the model as built."""
        return parameter_count(self)

    def counts(self) -> dict[str, Any]:
        """Sizes and numbers of parameters by name, every default filled in, for tables and JSON."""
        sparse = self.sparsity
        names = (
            "arch",
            "n_heads",
            "n_layers",
            "d_model",
            "head_dim",
            "mlp_dim",
            "vocab_size",
            "non_emb_params",
            "total_params",
            "exact_params",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "active_params": parameter_count(self, active=True),
            "attention_gate": self.choice("attention_gate"),
            "tied_head": self.choice("tied_head"),
            "n_kv_heads": self.kv_heads,
            "num_frequencies": (self.modes * self.n_heads or None) if self.architecture.oscillators else None,
            "n_experts": sparse and sparse.n_experts,
            "top_k": sparse and sparse.top_k,
            "expert_dim": sparse and sparse.expert_dim,
            "n_shared_experts": sparse and sparse.shared_dim // sparse.expert_dim,
            "sparse_layers": sparse and len(sparse.layers),
            "delta_layers": self.n_layers - self.attention_layers,
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: object = "model configuration") -> "ModelConfig":
        """The configuration that `as_dict` returned.

        `origin`: what the values are from, for messages.
        UserError: a setting is unknown or of another type, or a required one is missing.
        """
        return validated(cls, dict(values), origin, strict=True)


@cache
def _schema() -> Any:
    """The fields of a `ModelConfig` with their types and ranges, as pydantic checks them."""
    types = get_type_hints(ModelConfig, include_extras=True)
    names = {field.name: types[field.name] for field in fields(ModelConfig)}
    return TypedDict("ModelConfig", names)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]


# ---- sizes ----


def sizes_by_heads(arch: str, heads: int) -> dict[str, int]:
    """The dimensions of `arch` with this number of attention heads, as fields of a `ModelConfig`."""
    rule = architecture(arch)
    if heads < 1 or rule.n_layers(heads) < 1:
        raise UserError(f"--heads {heads} gives {rule.name} no layer; take more heads")
    return explicit_sizes(arch, heads * rule.head_dim, rule.n_layers(heads), heads, rule.head_dim)


def explicit_sizes(
    arch: str,
    d_model: int,
    n_layers: int,
    n_heads: int,
    head_dim: int | None = None,
    mlp_dim: int | None = None,
) -> dict[str, int]:
    """Given dimensions; head_dim defaults to d_model / n_heads, mlp_dim to the architecture's rule."""
    if head_dim is None:
        if n_heads < 1 or d_model % n_heads:
            raise UserError(f"--n-heads {n_heads} does not divide --d-model {d_model}; give --head-dim")
        head_dim = d_model // n_heads
    mlp_dim = architecture(arch).mlp_dim(d_model) if mlp_dim is None else mlp_dim
    return {
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "head_dim": head_dim,
        "mlp_dim": mlp_dim,
    }


def resonance_sizes(
    size: str | None = None,
    *,
    d_model: int | None = None,
    n_layers: int | None = None,
    n_heads: int | None = None,
    head_dim: int | None = None,
    mlp_dim: int | None = None,
    num_frequencies: int | None = None,
    mixer: str | None = None,
) -> dict[str, Any]:
    """Dimensions of the resonance model by the name of a size; explicit values override it.

    The channels are divided into groups (8, unless n_heads says otherwise) that share the poles of num_frequencies /
    groups damped oscillators.
    """
    groups = n_heads or GROUPS
    named = (None, None, DEFAULT_MODES * groups) if size is None else SIZES[key_of(SIZES, size, "--size")]
    d_model, n_layers = d_model or named[0], n_layers or named[1]
    if d_model is None or n_layers is None:
        raise UserError(f"give a size: --size {'|'.join(SIZES)}, or --model-dim and --num-layers")
    modes = num_frequencies if mixer == "none" else num_frequencies or named[2]
    return {
        **explicit_sizes("resonance", d_model, n_layers, groups, head_dim, mlp_dim),
        "num_frequencies": modes,
    }


# ---- parameters and FLOPs ----

PRODUCTS = ("matrix", "router", "experts")
"""Kinds of the weights of blocks that take part in matrix products: no embeddings, head, gains or biases."""
Weight = tuple[str, tuple[int, ...]]
"""Kind and shape of a parameter."""


@cache
def weights(config: ModelConfig) -> Counter[Weight]:
    """How many parameters of each kind and shape the model has as built; the kinds are those of its optimizers."""
    model = load("danalab.models:build_model")(config, device="meta")  # imports torch
    kinds = model.parameter_kinds()
    return Counter((kinds[name], tuple(weight.shape)) for name, weight in model.named_parameters())


def parameter_count(
    config: ModelConfig,
    kinds: tuple[str, ...] = (*PRODUCTS, "vector", "embedding", "head"),
    *,
    active: bool = False,
) -> int:
    """Exact number of parameters of these kinds of the model as built, by default of all.

    `active`: count only the experts that a token passes through.
    """
    count = 0
    for (kind, dims), times in weights(config).items():
        if active and kind == "experts" and config.sparsity is not None:
            dims = (config.sparsity.top_k, *dims[1:])
        count += times * math.prod(dims) if kind in kinds else 0
    return count


def flops_per_token(config: ModelConfig, seq_len: int | None = None) -> int:
    """FLOPs to train on one token: every matrix product of forward (2 a weight) and backward (4 a weight).

    Attention scores and mixing count in full, as in torch's counter: 12 n_layers (n_heads head_dim) seq_len; the delta
    rule by its matrix products; experts only if the token is sent to them. The Fourier transforms and short
    convolutions of resonance do not count: they are under 1% of its FLOPs, and memory-bound.
    """
    products = parameter_count(config, PRODUCTS, active=True) + config.vocab_size * config.d_model
    if config.architecture.oscillators:
        return 6 * products
    length = config.seq_len if seq_len is None else seq_len
    attention = 12 * config.attention_layers * config.n_heads * config.head_dim * length
    linear = config.linear_attention
    return 6 * products + attention + (0 if linear is None else len(linear.layers) * linear.flops_per_token())


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
    raise UserError(
        f"unknown activation checkpointing '{mode}'; known: none, full, every-n:K (K >= 1), selective"
    )
