"""The name of `danalab.optim.registry.spec` in version 0.1; it goes with the next release."""

from danalab.optim.registry.spec import OptimizerSpec, Setting

__all__ = ["OptimizerSpec", "Setting"]
