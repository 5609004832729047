"""The matrix products of an optimizer beside those of its model.

    share of a step = optimizer's FLOPs / (FLOPs per token x tokens per step)

The optimizer's part depends on the model alone, so its share falls as 1 / batch.
"""

import math
from collections.abc import Mapping
from typing import Any

from danalab.models.config import ModelConfig, weights
from danalab.optimizer_facts import facts_of, orthogonalisation_flops


def optimizer_flops(opt: str, shape: ModelConfig, settings: Mapping[str, Any], steps: int) -> float:
    """FLOPs of the orthogonalisations of Muon and its relatives in `steps` steps; 0 for others, whose are not counted.

    Args:
        settings: of the optimizer, as far as they differ from the defaults.
    Raises:
        UserError: unknown optimizer.
    """
    if not facts_of(opt).orthogonalises:
        return 0.0
    return steps * sum(
        times * math.prod(dims[:-2]) * orthogonalisation_flops(dims[-2], dims[-1], settings)
        for (kind, dims), times in weights(shape).items()
        if kind in ("matrix", "experts")
    )
