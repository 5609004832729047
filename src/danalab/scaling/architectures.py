"""What the counts and the size rules need to know of each architecture, by name.

    enoki   head_dim  64, n_layers = 3 heads // 4, d_model =  64 heads, mlp_dim = 4 d_model
    qwen3   head_dim 128, n_layers = 2 heads,      d_model = 128 heads, mlp_dim = 3 d_model
    qwen3next as qwen3, with 8 experts of d_model hidden features, 2 for each token and one for all: qwen3's active size
    gpt     head_dim  64, n_layers = heads,        d_model =  64 heads, mlp_dim = 4 d_model
    llama   head_dim 128, n_layers = heads,        d_model = 128 heads, mlp_dim = 8/3 d_model, up to the next 256
    moe     as enoki, with 8 experts of that mlp_dim in place of each mlp, 2 for each token
    resonance has no heads, but sizes by name: `danalab.scaling.resonance`

The first two are the paper's ladders. The next two pass through the sizes that everybody knows: gpt of 12 heads is
GPT-2 (124M), llama of 32 heads has the dimensions of Llama 7B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from danalab.errors import UserError
from danalab.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Structure:
    """An architecture, for counting; what a shape can say of itself (gate, head, norms) is only the default here."""

    head_dim: int
    """Features of a head, where --heads decides."""
    n_layers: Callable[[int], int]
    """Heads -> blocks."""
    mlp_dim: Callable[[int], int]
    """d_model -> hidden width of the mlp."""
    mlp_matrices: int
    """2: up and down; 3: and a gate."""
    attention_gate: bool = False
    """Attention's output is gated elementwise."""
    qk_norm: bool = True
    """Queries and keys are normalised, head by head."""
    tied_head: bool = False
    """The head is the token embedding."""
    learned_positions: bool = False
    """A vector for each position; else rotary embedding, which has no weights."""
    biases: bool = False
    """Linear maps and norms have one."""
    oscillators: bool = False
    """Tokens are mixed by banks of damped oscillators: no attention, and positions only by what still rings."""
    n_experts: int = 0
    """Experts in place of the mlp, where the shape says nothing; any architecture with attention can have them."""
    top_k: int = 2
    """Experts that a token is sent to, where the shape says nothing."""
    n_shared_experts: int = 0
    """Experts that every token passes, where the shape says nothing."""
    shared_expert_gate: bool = False
    """What shared experts say is gated."""
    expert_dim: Callable[[int], int] = lambda mlp_dim: mlp_dim
    """mlp_dim -> hidden width of an expert, where the shape says nothing."""
    linear_attention: bool = False
    """Layers may have the gated delta rule in place of attention."""
    size_law: bool = False
    """The paper's 12 d_model^2 n_layers is its size for learning rates, whatever its matrices are."""

    @property
    def rotary(self) -> bool:
        """Queries and keys turn with their positions."""
        return not (self.learned_positions or self.oscillators)


def _swiglu_width(d_model: int) -> int:
    return 256 * -(-(8 * d_model // 3) // 256)


def _no_heads(heads: int) -> int:
    raise UserError(f"--heads {heads}: resonance has none; give --size, or --model-dim and --num-layers")


STRUCTURES: Registry[Structure] = Registry("architecture")
STRUCTURES.add(
    "enoki",
    Structure(head_dim=64, n_layers=lambda heads: 3 * heads // 4, mlp_dim=lambda d: 4 * d, mlp_matrices=2),
    "diloco",  # its old name; what trains by DiLoCo is danalab.train.parallel.diloco, whatever the architecture
)
STRUCTURES.add(
    "moe",
    Structure(head_dim=64, n_layers=lambda heads: 3 * heads // 4, mlp_dim=lambda d: 4 * d, mlp_matrices=2, n_experts=8),
)
STRUCTURES.add(
    "qwen3",
    Structure(
        head_dim=128,
        n_layers=lambda heads: 2 * heads,
        mlp_dim=lambda d: 3 * d,
        mlp_matrices=3,
        attention_gate=True,
        size_law=True,
    ),
)
STRUCTURES.add(
    "qwen3next",
    Structure(
        head_dim=128,
        n_layers=lambda heads: 2 * heads,
        mlp_dim=lambda d: 3 * d,
        mlp_matrices=3,
        attention_gate=True,
        n_experts=8,
        n_shared_experts=1,
        shared_expert_gate=True,
        expert_dim=lambda mlp_dim: max(1, mlp_dim // 3),
        linear_attention=True,
        size_law=True,
    ),
    "qwen3-next",
)
STRUCTURES.add(
    "gpt",
    Structure(
        head_dim=64,
        n_layers=lambda heads: heads,
        mlp_dim=lambda d: 4 * d,
        mlp_matrices=2,
        qk_norm=False,
        tied_head=True,
        learned_positions=True,
        biases=True,
    ),
    "base",
    "gpt2",
)
STRUCTURES.add(
    "llama",
    Structure(head_dim=128, n_layers=lambda heads: heads, mlp_dim=_swiglu_width, mlp_matrices=3, qk_norm=False),
)
STRUCTURES.add(
    "resonance",
    Structure(
        head_dim=64,
        n_layers=_no_heads,
        mlp_dim=lambda d: 64 * round(8 * d / 192) or 64,
        mlp_matrices=3,
        qk_norm=False,
        tied_head=True,
        oscillators=True,
    ),
)
