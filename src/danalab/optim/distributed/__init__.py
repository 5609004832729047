"""Optimizers on several ranks: DTensor parameters (FSDP2, tensor parallelism) and ZeRO."""

from danalab.errors import UserError, nearest
from danalab.optim.catalogue import Row

__all__ = ["MODES", "require_supported", "why_not"]


MODES = {
    "single": "one process",
    "ddp": "replicas that average gradients",
    "zero": "replicas with a sharded optimizer (ZeRO-2)",
    "fsdp": "sharded parameters (FSDP2)",
    "fsdp+tp": "sharded parameters and tensor parallelism",
}
SHARDED = ("zero", "fsdp", "fsdp+tp")


def why_not(spec: Row, mode: str) -> str | None:
    """Why an optimizer does not support a mode; None if it does."""
    if mode not in MODES:
        raise UserError(f"unknown parallel mode '{mode}'{nearest(mode, MODES)}; known: {', '.join(MODES)}")
    if mode not in SHARDED:
        return None
    if spec.closure:
        return "its step evaluates the model again, which sharded state does not allow"
    if not spec.per_parameter and (mode == "zero" or not spec.sums_over_ranks):
        return "a statistic over all parameters couples them, and each rank would see only its own"
    if spec.train_eval and not spec.elementwise:
        return "its averaged weights would have to be gathered whole for every evaluation"
    return None


def require_supported(optimizer: Row, mode: str) -> None:
    """Check, before a run starts, that an optimizer (`optimizer_spec(name)`) is exact in a mode of `MODES`."""
    reason = why_not(optimizer, mode)
    if reason is not None:
        able = " or ".join(other for other in MODES if why_not(optimizer, other) is None)
        raise UserError(
            f"optimizer '{optimizer.name}' cannot be used with {mode} ({MODES[mode]}): {reason}; use {able}"
        )
