"""The matrix products of an optimizer beside those of its model: every parameter's shape, and the catalogue's rules.

    share of a step = optimizer's FLOPs / (FLOPs per token x tokens per step)

The optimizer's part depends on the model alone, so its share falls as 1 / batch.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from danalab.optim.catalogue import OPTIMIZERS
from danalab.scaling.shape import Shape, linear_attention, sparsity

Weight = tuple[str, tuple[int, ...]]
"""Kind and shape of a parameter."""


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

    def add_mlp(width: int) -> None:
        add_map(width, d, structure.mlp_matrices - 1)
        add_map(d, width)

    add("embedding", shape.vocab_size, d)
    if shape.learns_positions:
        add("embedding", shape.seq_len, d)
    if not shape.tied:
        add("head", shape.vocab_size, d)
    add_norm(d, 2 * shape.n_layers + 1)
    for layer in range(shape.n_layers):
        if linear is not None and layer in linear.layers:
            for outputs, times in ((linear.key_width, 2), (linear.value_width, 2), (linear.value_heads, 2)):
                add("matrix", outputs, d, times=times)
            add("matrix", d, linear.value_width)
            add("vector", linear.key_width, linear.conv_size, times=2)
            add("vector", linear.value_width, linear.conv_size)
            add("vector", linear.value_heads, times=2)
            add("vector", linear.value_dim)
        elif structure.oscillators:
            add("matrix", d, d, times=3)
            if shape.modes:
                add("vector", shape.n_heads, shape.modes, times=2)
                add("vector", d, shape.modes, times=2)
                add("vector", d)
                if shape.conv_width:
                    add("vector", d, shape.conv_width)
        else:
            width, kv_width = shape.n_heads * shape.head_dim, shape.kv_heads * shape.head_dim
            add_map(width, d)
            add_map(kv_width, d, times=2)
            add_map(d, width)
            if shape.gated:
                add_map(width, d)
            if shape.qk_normed:
                add_norm(shape.head_dim, 2)
        if sparse is None or layer not in sparse.layers:
            add_mlp(shape.mlp_dim)
            continue
        add("router", sparse.n_experts, d)
        add("experts", sparse.n_experts, sparse.expert_dim, d, times=structure.mlp_matrices - 1)
        add("experts", sparse.n_experts, d, sparse.expert_dim)
        if sparse.shared_dim:
            add_mlp(sparse.shared_dim)
        if sparse.shared_gate:
            add("router", 1, d)
    return +found


def optimizer_flops(opt: str, shape: Shape, settings: Mapping[str, Any], steps: int) -> float | None:
    """FLOPs of the optimizer's own matrix products in the first `steps` steps of a run.

    Args:
        settings: of the optimizer, as far as they differ from the defaults.
    Returns:
        None: an optimizer of your own, or orthogonalisation by head, whose products are not known.
    Raises:
        UserError: unknown optimizer.
    """
    row = OPTIMIZERS.get(opt)
    if row.flops is None or settings.get("per_head"):  # a weight's heads are not known here
        return None
    given, total = {name: default for name, (default, _) in row.plain_defaults().items()} | dict(settings), 0.0
    for (kind, dims), times in weights(shape).items():
        total += times * row.flops(kind, dims, given | (given.get("by_kind") or {}).get(kind, {}), steps)
    return total
