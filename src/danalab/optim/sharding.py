"""The name of `danalab.optim.distributed` in version 0.1; it goes with the next release."""

from danalab.optim.distributed import MODES, require_supported, why_not

__all__ = ["MODES", "require_supported", "why_not"]
