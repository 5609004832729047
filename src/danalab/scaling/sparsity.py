"""The experts of a model: their sizes, and the layers that have them, with defaults filled in.

A layer has experts where `n_experts` > 0, its index i (from 0) is not among `mlp_only_layers`, and
`decoder_sparse_step` divides i + 1; all other layers keep the dense MLP.
"""

from dataclasses import dataclass

from danalab.errors import UserError
from danalab.scaling.shape import EXPERT_SETTINGS, Shape

MAX_LAYERS = 100_000
"""Limit on lists of layers."""


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
        _refuse_without_experts(shape)
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


def mlp_params(shape: Shape, *, active: bool = False) -> int:
    """Matrix weights of all layers' MLPs, experts, routers and gates.

    Args:
        active: count only the experts that a token passes through.
    """
    matrices = shape.architecture.mlp_matrices
    sparse = sparsity(shape)
    if sparse is None:
        return shape.n_layers * matrices * shape.d_model * shape.mlp_dim
    experts = sparse.top_k if active else sparse.n_experts
    hidden = experts * sparse.expert_dim + sparse.shared_dim
    each = shape.d_model * (matrices * hidden + sparse.n_experts + sparse.shared_gate)
    dense = (shape.n_layers - len(sparse.layers)) * matrices * shape.d_model * shape.mlp_dim
    return len(sparse.layers) * each + dense


def mlp_biases(shape: Shape) -> int:
    """Biases of all layers' MLPs in an architecture with biases; routed experts have none, shared ones do."""
    inner = shape.architecture.mlp_matrices - 1
    sparse = sparsity(shape)
    if sparse is None:
        return shape.n_layers * (inner * shape.mlp_dim + shape.d_model)
    dense = (shape.n_layers - len(sparse.layers)) * (inner * shape.mlp_dim + shape.d_model)
    return dense + (len(sparse.layers) * (inner * sparse.shared_dim + shape.d_model) if sparse.shared_dim else 0)


def _layers(shape: Shape) -> tuple[int, ...]:
    step = shape.decoder_sparse_step
    if step < 1:
        raise UserError(f"--decoder-sparse-step {step}: at least 1 is needed (1: every layer has experts)")
    for layer in shape.mlp_only_layers:
        if not 0 <= layer < shape.n_layers:
            raise UserError(f"--mlp-only-layers {layer}: the model has the layers 0..{shape.n_layers - 1}")
    layers = tuple(i for i in range(shape.n_layers) if (i + 1) % step == 0 and i not in shape.mlp_only_layers)
    if not layers:
        raise UserError(
            f"--decoder-sparse-step {step} and --mlp-only-layers leave none of the {shape.n_layers} layers with experts"
        )
    return layers


def _refuse_without_experts(shape: Shape) -> None:
    for name in EXPERT_SETTINGS:
        if getattr(shape, name) not in (None, False, (), 1 if name == "decoder_sparse_step" else None):
            raise UserError(f"--{name.replace('_', '-')}: {shape.arch} has no experts here; give --n-experts, too")
