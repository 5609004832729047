"""Base classes of optimizers with independent, decaying weight decay, and of those in logarithmic time."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from danalab.errors import UserError
from danalab.optim.core.checks import resolve_decay, warn_of_large_decay
from danalab.optim.core.optimizer import ElementwiseOptimizer
from danalab.optim.core.stats import collect, update_rms
from danalab.optim.elementwise.scalars import momentum_gain
from danalab.optim.run_length import DECAY_BOUND, LOG_TIME_DECAY_BOUND

log = logging.getLogger(__name__)


class DecayingOptimizer(ElementwiseOptimizer):
    """One element-wise rule with independent, decaying weight decay, given in either of two forms."""

    decay_bound: ClassVar[float] = DECAY_BOUND
    """Bound of a decay that is given by omega, times the peak learning rate."""
    _omega: float | None = None
    _horizon: float | None = None

    def __init__(self, params: Any, settings: dict[str, Any]):
        self._omega, self._horizon = settings["omega"], settings["horizon"]
        super().__init__(params, self._with_decay({"decay_bound": None, **settings}, None))
        unbounded = [group for group in self.param_groups if group["decay_bound"] is None]
        for decay in {(group["weight_decay"], group["wd_ts"]) for group in unbounded}:
            warn_of_large_decay(self.name, *decay)
        if self.defaults["weight_decay"] and not any(group["weight_decay"] for group in self.param_groups):
            # Trainers that make groups of their own write their weight decay into them, which is 0 unless it is set.
            log.warning(
                "%s: a weight decay was set, but every group says weight_decay 0, so nothing decays;"
                " build the optimizer yourself and hand it to the trainer",
                self.name,
            )

    def prepare_groups(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        if not isinstance(group, dict):
            return [group]
        if group.get("weight_decay"):
            if self._omega is not None and group.get("omega") is None:
                raise UserError(
                    f"{self.name}: a group has weight_decay {group['weight_decay']}, and the optimizer omega"
                    f" {self._omega:g}; give one of them: leave weight_decay out of groups that decay (0 is no decay)"
                )
            group = {"decay_bound": None, **group}
        return [self._with_decay(group, self.defaults["wd_ts"])]

    def _apply(self, skip: Any) -> None:
        if self._horizon is not None:
            self._warn_beyond(self._horizon)
        super()._apply(skip)

    def _warn_beyond(self, horizon: float) -> None:
        """Warn once, in the first step beyond the horizon."""
        host = (group["params"] for group in self.param_groups if not group["capturable"])
        p = next((p for params in host for p in params if p.grad is not None), None)
        if p is not None and (step := int(self.state[p].get("step", 0)) + 1) > horizon:
            self._horizon = None
            log.warning(
                "%s: step %d is beyond the horizon of %g steps; weight decay goes on falling as omega / (wd_ts + t):"
                " build the optimizer with the length of the whole run",
                self.name,
                step,
                horizon,
            )

    def _with_decay(self, settings: Mapping[str, Any], wd_ts: float | None) -> dict[str, Any]:
        """Settings with `weight_decay`, `wd_ts` and `decay_bound` for omega; `wd_ts` is that of one without horizon."""
        found = dict(settings)
        omega, horizon = found.pop("omega", None), found.pop("horizon", None)
        if omega is not None or horizon is not None:
            own = found.get("wd_ts")
            found["weight_decay"], found["wd_ts"] = resolve_decay(
                self.name,
                weight_decay=found.get("weight_decay", 0.0),
                wd_ts=wd_ts if own is None and horizon is None else own,
                omega=omega,
                horizon=horizon,
            )
            if found.get("decay_bound") is None:
                found["decay_bound"] = self.decay_bound
        if found.get("decay_bound") == 0:
            found["decay_bound"] = None
        return found


class LogTimeOptimizer(DecayingOptimizer):
    """An optimizer whose averages run in logarithmic time: beta(t) = 1 - delta / (delta + t)."""

    decay_bound: ClassVar[float] = LOG_TIME_DECAY_BOUND

    def coefficients(self, group: int = 0) -> dict[str, Any]:
        """Scalars of the last step of a group: `t`, `lr`, `schedule`, `beta`, `alpha`, `lambda`.

        Numbers; with `capturable` those that depend on t are 0-dim tensors, so that no device is waited for. `alpha` is
        `largest_alpha`.
        """
        settings, known = self.param_groups[group], super().coefficients(group)
        t = known["t"]
        return {**known, "beta": 1 - momentum_gain(settings, t), "alpha": self.largest_alpha(settings, t)}

    def largest_alpha(self, group: Mapping[str, Any], t: Any) -> Any:
        """(1 + t)^(1 - kappa), the largest of all coordinates."""
        return (1 + t) ** (1 - group["kappa"])

    def collect_stats(self) -> dict[str, Any]:
        """Means over all coordinates after the last step, as 0-dim tensors; see `danalab.optim.core.stats.collect`.

        Costs a pass over the state: call it when you log, and on all ranks. No device is waited for.
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
