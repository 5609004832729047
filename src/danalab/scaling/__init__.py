"""Scaling rules: heads -> dimensions, parameters, learning rate, weight decay, horizon, FLOPs. Arithmetic only."""

from danalab.models.config import flops_per_token, parameter_count
from danalab.scaling.learning_rate import learning_rate
from danalab.scaling.optimizer_flops import optimizer_flops
from danalab.scaling.plan import Plan, dimensions, plan

__all__ = [
    "Plan",
    "dimensions",
    "flops_per_token",
    "learning_rate",
    "optimizer_flops",
    "parameter_count",
    "plan",
]
