"""Scaling rules: heads -> dimensions, parameters, learning rate, weight decay, horizon, FLOPs. Arithmetic only."""

from typing import TYPE_CHECKING, Any

from danalab.models.config import GPT2_VOCAB, ModelConfig, flops_per_token, parameter_count
from danalab.scaling.learning_rate import learning_rate

if TYPE_CHECKING:
    from danalab.train.config.train_config import TrainConfig

__all__ = [
    "dimensions",
    "flops_per_token",
    "learning_rate",
    "parameter_count",
    "plan",
]


def dimensions(
    arch: str, heads: int, vocab_size: int = GPT2_VOCAB, n_kv_heads: int | None = None
) -> ModelConfig:
    """The model of `arch` with this number of attention heads; see `ModelConfig.from_heads`."""
    return ModelConfig.from_heads(arch, heads, vocab_size, n_kv_heads=n_kv_heads)


def plan(arch: str, opt: str, heads: int | None = None, **settings: Any) -> "TrainConfig":
    """The run that `danalab train` would make, every number filled in; see `danalab.train.config.resolve.plan`."""
    from danalab.train.config.resolve import plan as resolved  # the room above, which imports this one

    return resolved(arch, opt, heads, **settings)
