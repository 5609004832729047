"""The table of architectures: what each is made of, and how its sizes follow from a number of heads.

A new architecture is one row here; if it mixes tokens by a new layer, the row names the layer's class (`mixer_class`).
Parameter and FLOP counts, models, checkpoints and flags all read this table.

The rows enoki and qwen3 are the paper's ladders. gpt of 12 heads is GPT-2 (124M); llama of 32 heads has the dimensions
of Llama 7B.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from danalab.errors import UserError
from danalab.tables import lookup

Activation = Literal["gelu", "gelu-tanh", "swiglu"]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One row. Settings that a configuration may also choose (gate, norms, head, experts) are defaults."""

    name: str
    head_dim: int
    """Features of a head where the size is given by --heads."""
    n_layers: Callable[[int], int]
    """Heads -> blocks."""
    mlp_dim: Callable[[int], int]
    """d_model -> hidden width of the MLP."""
    activation: Activation
    """Activation of the MLP; swiglu has a third matrix, the gate."""
    norm: str
    """"layernorm", "rmsnorm" or "rmsnorm-1p"."""
    mixer_class: str = "danalab.models.layers.attention:Attention"
    """`module:Class` of the layer that mixes tokens; constructed with a `ModelConfig`."""
    init: str = "scaled-gpt"
    """Initialisation."""
    attention_gate: bool = False
    """The output of attention is gated elementwise."""
    qk_norm: bool = True
    """Queries and keys are normalised, head by head."""
    tied_head: bool = False
    """The head is the token embedding."""
    learned_positions: bool = False
    """One vector per position in place of rotary embedding."""
    biases: bool = False
    """Linear maps and norms have biases."""
    oscillators: bool = False
    """Tokens are mixed by damped oscillators: no attention, no position encoding."""
    n_experts: int = 0
    """Experts in place of each MLP; every architecture with attention can have them."""
    top_k: int = 2
    """Experts per token."""
    n_shared_experts: int = 0
    """Experts that every token passes."""
    shared_expert_gate: bool = False
    """The output of the shared experts is gated."""
    expert_dim: Callable[[int], int] = lambda mlp_dim: mlp_dim
    """mlp_dim -> hidden width of an expert."""
    linear_mixer_class: str = ""
    """As `mixer_class`, of the layers with linear attention (`full_attention_interval`); empty: there are none."""
    size_law: bool = False
    """Learning rates follow 12 d_model^2 n_layers, whatever the matrices are."""

    @property
    def rotary(self) -> bool:
        """Queries and keys are rotated by their positions."""
        return not (self.learned_positions or self.oscillators)


def _no_heads(heads: int) -> int:
    raise UserError(f"--heads {heads}: resonance has none; give --size, or --model-dim and --num-layers")


_ENOKI = Architecture(
    name="enoki",
    # GPT-3-like: rotary, QK-LayerNorm, pre-LayerNorm, GELU, untied head; head_dim 64
    head_dim=64,
    n_layers=lambda heads: 3 * heads // 4,
    mlp_dim=lambda d: 4 * d,
    activation="gelu",
    norm="layernorm",
)
# Sources: arXiv 2505.09388 (Qwen3), 2505.06708 (gated attention); attention_gate=False is the published Qwen3.
_QWEN3 = Architecture(
    name="qwen3",
    # rotary, QK-RMSNorm, pre-RMSNorm, SwiGLU, gated attention, untied head; head_dim 128
    head_dim=128,
    n_layers=lambda heads: 2 * heads,
    mlp_dim=lambda d: 3 * d,
    activation="swiglu",
    norm="rmsnorm",
    attention_gate=True,
    size_law=True,
)
_ROWS = (
    _ENOKI,
    _QWEN3,
    # Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    Architecture(
        name="gpt",
        # GPT-2: learned positions, pre-LayerNorm, GELU (tanh), biases, head tied to the embedding; head_dim 64
        head_dim=64,
        n_layers=lambda heads: heads,
        mlp_dim=lambda d: 4 * d,
        activation="gelu-tanh",
        norm="layernorm",
        qk_norm=False,
        tied_head=True,
        learned_positions=True,
        biases=True,
    ),
    # Sources: arXiv 2302.13971 (Llama), 2305.13245 (grouped queries).
    Architecture(
        name="llama",
        # rotary, pre-RMSNorm, SwiGLU, grouped queries, untied head; head_dim 128
        head_dim=128,
        n_layers=lambda heads: heads,
        mlp_dim=lambda d: 256 * -(-(8 * d // 3) // 256),
        activation="swiglu",
        norm="rmsnorm",
        qk_norm=False,
    ),
    # Sources: arXiv 2101.03961 (Switch Transformers), 2202.08906 (router z-loss), 2211.15841 (dropless experts).
    replace(
        _ENOKI,
        name="moe",
        # enoki with 8 experts instead of each MLP, 2 per token; the other architectures take --n-experts, too
        n_experts=8,
    ),
    # Sources: Qwen3-Next as in the `transformers` library; arXiv 2412.06464 (gated delta rule).
    replace(
        _QWEN3,
        name="qwen3next",
        # qwen3 with 8 experts and a shared one instead of each MLP; --full-attention-interval 4: the gated delta rule
        # instead of attention in three layers of four
        norm="rmsnorm-1p",
        n_experts=8,
        n_shared_experts=1,
        shared_expert_gate=True,
        expert_dim=lambda mlp_dim: max(1, mlp_dim // 3),
        linear_mixer_class="danalab.models.delta_rule:GatedDeltaNet",
    ),
    Architecture(
        name="resonance",
        # gated banks of damped oscillators by the FFT (no attention), pre-RMSNorm, SwiGLU, tied head; --size
        head_dim=64,
        n_layers=_no_heads,
        mlp_dim=lambda d: 64 * round(8 * d / 192) or 64,
        activation="swiglu",
        norm="rmsnorm",
        mixer_class="danalab.models.resonance.mixer:Resonator",
        # Scaled by 1/sqrt(d), a tied head would start by predicting the token it has just read, at sqrt(d) logits.
        init="karpathy-gpt2",
        qk_norm=False,
        tied_head=True,
        oscillators=True,
    ),
)
ARCHITECTURES = {row.name: row for row in _ROWS}
ALIASES = {"base": "gpt", "gpt2": "gpt", "qwen3-next": "qwen3next", "diloco": "enoki"}
"""Other names, among them the original's."""


def architecture(name: str) -> Architecture:
    """The architecture called `name`, in any spelling. UserError: unknown, with the nearest."""
    word = name.lower().replace("_", "-")
    return lookup(ARCHITECTURES, ALIASES.get(word, word), "architecture")
