"""Optimizers over ranks: DTensor parameters (FSDP2, tensor parallelism) and ZeRO, exact or refused before training."""

from danalab.optim.distributed.modes import MODES, require_supported, why_not

__all__ = ["MODES", "require_supported", "why_not"]
