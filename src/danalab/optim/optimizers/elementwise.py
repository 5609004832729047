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
from danalab.optim.rules.dana import DANA, SIGN_DANA
from danalab.optim.rules.dana_star import DANA_STAR
from danalab.optim.settings import (
    AdamWDecayingWDSettings,
    ADanaSettings,
    AdEMAMixDecayingWDSettings,
    AdEMAMixSettings,
    AutoDanaSettings,
    DanaMK4Settings,
    DanaSettings,
    SignDanaSettings,
    takes,
)


class ADana(LogTimeOptimizer):
    """AdamW with logarithmic-time averages, damped long momentum and decaying independent weight decay.

        a = delta / (delta + t)          m <- m + a (g - m)          v <- v + a (g^2 - v)          r = sqrt(v) + eps
        p <- p - lr [ g/r + gamma3 ((1+t)^(1-kappa) + alpha_offset) m/r ]
        p <- p (1 - (lr / peak_lr) min(weight_decay / (1 + t / wd_ts), decay_bound peak_lr))

    Args:
        params: parameters, named parameters, or groups of them; a group may override any setting below.
        lr: learning rate. The value at construction is the group's `peak_lr`, which schedulers do not change.
        delta: the averages cover about the last 1/delta of the run [steps; half of it at t = delta].
        kappa: exponent of the damping, between 0 and 1; smaller values mean more momentum.
        gamma3: scales the momentum term.
        alpha_offset: 1 is the published implementation, for which learning rates were fitted; 0 is the paper's formula.
        weight_decay: decay per step at the peak learning rate, not multiplied by it; constant if `wd_ts` is None.
        wd_ts: time scale of its decay [steps].
        omega: the other form: with `horizon` (or wd_ts), lambda(t) = omega / (wd_ts + t).
        horizon: length of the run [steps]; wd_ts = horizon / 10.
        decay_bound: largest decay per step, times the peak learning rate; 0: none. None: 2 with `omega`, none with
            `weight_decay`.
        cautious_decay: decay only coordinates that the step moves towards zero (arXiv 2510.12402).
        scaled_decay: multiply the decay by lr / peak_lr once more (arXiv 2607.23777).
        beta2: constant rate of the second moment, with Adam's correction of the bias; None: beta(t).
        momentum_cooldown: exponent c of m's gain delta / (delta + t (lr / peak_lr)^c), so that the momentum's memory
            shrinks with the learning rate; 0: off. docs/theory.md recommends 1 where the rate decays to 0.
        foreach: update lists of parameters; fewer, larger kernels on a GPU.
        fused: True: one compiled pass over memory. None: chosen by device. False: plain torch.
        capturable: keep the step count on the device, for CUDA graphs.
        maximize: maximize the objective instead of minimizing it.
        stochastic_rounding: round bfloat16 and float16 parameters up or down at random, so that the mean is exact.
        state_dtype: format of the moments: "float32", "bf16+8" (3 bytes) or "8bit" (1 byte), see
            `danalab.optim.step.state_formats`.
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

    Arguments and weight decay as in `ADana`; the state has one more tensor, `tau`.
    """

    rule = DANA_STAR


class DanaStarMK4(DanaMK4):
    """DanaStar whose damped momentum term is clipped at `clipsnr`; arguments as in `DanaMK4`."""

    rule = DANA_STAR


class Dana(LogTimeOptimizer):
    """Gradient descent with damped long momentum in logarithmic time: ADana without the second moment.

        a = delta / (delta + t)          m <- m + a (g - m)
        p <- p - lr [ g + gamma3 ((1+t)^(1-kappa) + alpha_offset) m ]
        p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts))

    Linear in the gradients, as the theory assumes. Steps are proportional to the gradients: the learning rate is that
    of plain gradient descent, bounded by the curvature.

    Arguments as in `ADana`, without `eps` and `beta2`, but for:

    Args:
        alpha_offset: added to the damping (1+t)^(1-kappa); here the formula is the paper's, without it.
    Source: arXiv 2602.05298 (the Dana family); Ferbach et al. 2025, arXiv 2505.16098 (its damped momentum).
    """

    rule = DANA

    @takes(DanaSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


class SignDana(LogTimeOptimizer):
    """ADana's schedules with the sign of both terms in place of their normalisation by the second moment.

        a = delta / (delta + t)          m <- m + a (g - m)
        p <- p - lr [ sign(g) + gamma3 ((1+t)^(1-kappa) + alpha_offset) sign(m) ]
        p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts))

    One state tensor instead of two. The momentum's sign counts in full however small the average is, so a step is
    several times ADana's: learning rates are smaller, as with other sign methods.

    Arguments as in `Dana`, but for:

    Args:
        alpha_offset: as in `ADana`, of which this is the relative.
    Source: arXiv 2602.05298 for the schedules; Bernstein et al. 2018, arXiv 1802.04434, for descent by signs.
    """

    rule = SIGN_DANA

    @takes(SignDanaSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


class AutoDana(LogTimeOptimizer):
    """ADana whose kappa is chosen online, for each coordinate, from the signal-to-noise ratio of the momentum.

        a = delta / (delta + t)          m <- m + a (g - m)          v <- v + a (g^2 - v)          r = sqrt(v) + eps
        u = m / r        N(t) = delta^2 / ((2 delta - 1) t + delta^2)        w = max(0, 1 - significance^2 N(t) / u^2)
        kappa = kappa_max - (kappa_max - kappa_min) w
        p <- p - lr [ g/r + gamma3 ((1+t)^(1-kappa) + alpha_offset) u ]
        p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts))

    `danalab.optim.rules.auto_dana` explains the rule. `collect_stats()` reports the mean kappa.

    Arguments as in `ADana`, without `beta2` and `momentum_cooldown`, and with these in place of `kappa`:

    Args:
        kappa_min: kappa of a coordinate whose gradients agree.
        kappa_max: kappa of a coordinate whose gradients are noise.
        significance: multiple of the noise's standard deviation from which m counts as signal.
    Source: our own rule for kappa; arXiv 2602.05298 for the family.
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

    Other arguments are as in `ADana`.

    Args:
        betas: rates of the fast momentum, of the second moment, and of the slow momentum.
        alpha: weight of the slow momentum.
        alpha_warmup: steps until `alpha` has grown linearly from 0; None: at once.
        beta3_warmup: steps until the slow rate has grown from beta1, linearly in half-life; None: at once.
        gamma3: scales alpha.
        weight_decay: times the learning rate.
    Source: Pagliardini, Ablin and Grangier 2024, arXiv 2409.03137.
    """

    rule = ADEMAMIX

    @takes(AdEMAMixSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


class AdEMAMixDecayingWD(_Mixing, DecayingOptimizer):
    """AdEMAMix with ADana's weight decay: independent of the learning rate, decaying, and applied before the update.

        p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts))          p <- p - lr u

    u and all arguments but those of weight decay are those of `AdEMAMix`.

    Source: arXiv 2409.03137 for the update, 2602.05298 for the decay.
    """

    rule = ADEMAMIX_DECAYING_WD

    @takes(AdEMAMixDecayingWDSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


class AdamWDecayingWD(DecayingOptimizer):
    """Adam with bias correction, then p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts)).

    `betas` are the rates of the first and second moment; other arguments are as in `ADana`.

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
    rule = getattr(import_module(f"danalab.optim.{module}"), constant)
    coupled = ElementwiseOptimizer if row.decay == "coupled" else DecayingOptimizer
    base = LogTimeOptimizer if row.log_time else coupled
    body = {"__module__": __name__, "__doc__": row.summary, "rule": rule}
    globals()[name] = type(name, (base,), {**body, "__init__": takes(rule.settings)(base.__init__)})
    return globals()[name]
