"""The matrix products of an optimizer beside those of its model: every parameter's shape, and the catalogue's rules.

    share of a step = optimizer's FLOPs / (FLOPs per token x tokens per step)

The optimizer's part depends on the model alone, so its share falls as 1 / batch.
"""

from collections.abc import Mapping
from typing import Any

from danalab.optim.catalogue import OPTIMIZERS
from danalab.scaling.shape import Shape, weights


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
