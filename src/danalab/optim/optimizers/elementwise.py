"""The element-wise optimizers: AdamW with decaying weight decay, AdEMAMix, and the Dana family.

Each is a rule of `danalab.optim.rules` with its settings. Where a row of the catalogue names a rule itself, its class
is made here, as `Name` of the row "name".
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from danalab.errors import UserError
from danalab.optim.optimizers.base import DecayingOptimizer, ElementwiseOptimizer, LogTimeOptimizer
from danalab.optim.rules.adamw_decaying_wd import ADAMW_DECAYING_WD
from danalab.optim.rules.adana import ADANA
from danalab.optim.rules.ademamix import ADEMAMIX, ADEMAMIX_DECAYING_WD, mixing_weight, slow_rate
from danalab.optim.rules.auto_dana import AUTO_DANA
from danalab.optim.rules.dana_star import DANA_STAR
from danalab.optim.settings import (
    AdamWDecayingWDSettings,
    ADanaSettings,
    AdEMAMixDecayingWDSettings,
    AdEMAMixSettings,
    AutoDanaSettings,
    DanaMK4Settings,
    takes,
)


class ADana(LogTimeOptimizer):
    """AdamW with logarithmic-time averages, damped long momentum and decaying independent weight decay.

        a = delta / (delta + t)          m <- m + a (g - m)          v <- v + a (g^2 - v)          r = sqrt(v) + eps
        p <- p - lr [ g/r + gamma3 ((1+t)^(1-kappa) + alpha_offset) m/r ]
        p <- p (1 - (lr / peak_lr) min(weight_decay / (1 + t / wd_ts), decay_bound peak_lr))

    The averages cover about the last 1/delta of the run (half of it at t = delta). The learning rate at construction is
    a group's `peak_lr`, which schedulers do not change; a group may override any setting. Weight decay does not follow
    the learning rate, but its bound does; in the other form, with omega, lambda(t) = omega / (wd_ts + t).

    Raises:
        UserError: a setting out of range, both forms of weight decay, no parameters, or `fused` without a compiler.
    Source: arXiv 2602.05298.
    """

    rule = ADANA

    @takes(ADanaSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


class DanaMK4(LogTimeOptimizer):
    """ADana whose damped momentum term (1+t)^(1-kappa) |m|/r is clipped at `clipsnr`; all else as in `ADana`."""

    rule = ADANA

    @takes(DanaMK4Settings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


class DanaStar(ADana):
    """ADana with an effective time for each coordinate, for sparse or uneven gradients.

        tau <- tau + a (|g| / (|g| + r) - tau)        T = max(tau t, 1)
        q   =  max(c / (1-c), 1 / (1+t)),  c = min(tau, 1/2)
        p   <- p - lr sqrt(q)/r [ g + gamma3 (T^(1-kappa) + alpha_offset) m ]

    Weight decay is as in `ADana`; the state has one more tensor, `tau`.
    """

    rule = DANA_STAR


class DanaStarMK4(DanaMK4):
    """DanaStar whose damped momentum term is clipped at `clipsnr`."""

    rule = DANA_STAR


class AutoDana(LogTimeOptimizer):
    """ADana whose kappa is chosen online, for each coordinate, from the signal-to-noise ratio of the momentum.

    `danalab.optim.rules.auto_dana` has the rule and the reasons. `collect_stats()` reports the mean kappa.
    """

    rule = AUTO_DANA

    @takes(AutoDanaSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

    def check_group(self, group: Mapping[str, Any]) -> None:
        super().check_group(group)
        low, high = group["kappa_min"], group["kappa_max"]
        if low > high:
            raise UserError(f"{self.name}: kappa_min {low:g} and kappa_max {high:g} must be in this order")

    def largest_alpha(self, group: Mapping[str, Any], t: Any) -> Any:
        """(1 + t)^(1 - kappa_min)."""
        return (1 + t) ** (1 - group["kappa_min"])


class _Mixing(ElementwiseOptimizer):
    rates = 3

    def coefficients(self, group: int = 0) -> dict[str, Any]:
        """Scalars of the last step of a group: `t`, `lr`, `schedule`, `lambda`, `alpha`, `beta3`."""
        settings, known = self.param_groups[group], super().coefficients(group)
        return {**known, "alpha": mixing_weight(settings, known["t"]), "beta3": slow_rate(settings, known["t"])}


class AdEMAMix(_Mixing):
    """Adam with a slow momentum beside the fast one; weight decay is multiplied by the learning rate.

        m <- m + (1-beta1) (g - m)      s <- s + (1-beta3(t)) (g - s)      v <- v + (1-beta2) (g^2 - v)
        u  = (m / (1-beta1^t) + gamma3 alpha(t) s) / (sqrt(v / (1-beta2^t)) + eps)
        p <- p - lr (u + weight_decay p)

    The slow momentum starts at zero without bias correction; warm-ups (`mixing_weight`, `slow_rate`) phase it in.
    In the scaling ladder alpha = steps^(1-kappa), beta3 = 1 - delta / steps, both warm-ups = steps.

    Source: Pagliardini, Ablin and Grangier 2024, arXiv 2409.03137.
    """

    rule = ADEMAMIX

    @takes(AdEMAMixSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


class AdEMAMixDecayingWD(_Mixing, DecayingOptimizer):
    """AdEMAMix with ADana's weight decay: independent of the learning rate, decaying, and applied before the update.

        p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts))          p <- p - lr u

    u is that of `AdEMAMix`.

    Source: arXiv 2409.03137 for the update, 2602.05298 for the decay.
    """

    rule = ADEMAMIX_DECAYING_WD

    @takes(AdEMAMixDecayingWDSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


class AdamWDecayingWD(DecayingOptimizer):
    """Adam with bias correction, then p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts)).

    Source: Loshchilov and Hutter 2019; arXiv 2602.05298 for the decay.
    """

    rule = ADAMW_DECAYING_WD

    @takes(AdamWDecayingWDSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


def __getattr__(name: str) -> Any:
    from danalab.optim.catalogue import OPTIMIZERS  # which an import of one class does not need

    rows = (row for row in map(OPTIMIZERS.get, OPTIMIZERS) if row.path.startswith("rules."))
    row = next((row for row in rows if row.class_name == name), None)
    if row is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module, _, constant = row.path.partition(":")
    written = import_module(f"danalab.optim.{module}")
    rule = getattr(written, constant)
    coupled = ElementwiseOptimizer if row.decay == "coupled" else DecayingOptimizer
    base = LogTimeOptimizer if row.log_time else coupled
    body = {"__module__": __name__, "__doc__": written.__doc__, "rule": rule}
    globals()[name] = type(name, (base,), {**body, "__init__": takes(rule.settings)(base.__init__)})
    return globals()[name]
