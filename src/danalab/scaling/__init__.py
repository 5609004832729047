"""Scaling rules: heads -> dimensions, parameters, learning rate, weight decay, horizon, FLOPs. Arithmetic only."""

from danalab.scaling.dimensions import Dimensions, dimensions, explicit_dimensions, flops_per_token, parameter_count
from danalab.scaling.learning_rate import learning_rate
from danalab.scaling.optimizer_flops import optimizer_flops
from danalab.scaling.plan import Plan, plan

__all__ = [
    "Dimensions",
    "Plan",
    "dimensions",
    "explicit_dimensions",
    "flops_per_token",
    "optimizer_flops",
    "learning_rate",
    "parameter_count",
    "plan",
]
