"""Any optimizer of the registry on any layout of parameters: exact, or refused before training starts."""

from danalab.optim.sharding.modes import MODES, require_supported, why_not

__all__ = ["MODES", "require_supported", "why_not"]
