"""Optimizers on several ranks: DTensor parameters (FSDP2, tensor parallelism) and ZeRO."""

from danalab.optim.distributed.modes import MODES, require_supported, why_not

__all__ = ["MODES", "require_supported", "why_not"]
