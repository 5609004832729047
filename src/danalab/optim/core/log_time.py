"""What the logarithmic-time optimizers report about themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from danalab.optim.core.optimizer import DecayingOptimizer
from danalab.optim.core.stats import collect, update_rms


class LogTimeOptimizer(DecayingOptimizer):
    """An optimizer whose averages run in logarithmic time: beta(t) = 1 - delta / (delta + t)."""

    def coefficients(self, group: int = 0) -> dict[str, Any]:
        """Scalars of the last step of a group: `t`, `lr`, `schedule`, `beta`, `alpha`, `lambda`.

        Numbers; with `capturable` those that depend on t are 0-dim tensors, so that no device is waited for. `alpha` is
        `largest_alpha`.
        """
        settings, known = self.param_groups[group], super().coefficients(group)
        t = known["t"]
        beta = 1 - settings["delta"] / (settings["delta"] + t)
        return {**known, "beta": beta, "alpha": self.largest_alpha(settings, t)}

    def largest_alpha(self, group: Mapping[str, Any], t: Any) -> Any:
        """(1 + t)^(1 - kappa); of the members with tau no coordinate has more."""
        return (1 + t) ** (1 - group["kappa"])

    def collect_stats(self) -> dict[str, Any]:
        """Means over all coordinates after the last step, as 0-dim tensors; see `danalab.optim.core.stats.collect`.

        Costs a pass over the state, so call it when you log, and on all ranks. No device is waited for.
        """
        return collect(self)

    def update_rms(self) -> Any:
        """Root mean square of the last step's direction (before the learning rate), over all coordinates.

        A 0-dim tensor, computed from the state and the gradients: call it between `step()` and `zero_grad()`, on all
        ranks.

        Raises:
            UserError: the gradients are gone.
        """
        return update_rms(self)
