"""The logarithmic-time optimizers: ADana, DanaMK4, DanaStar, DanaStarMK4.

One update with two switches: `Star` gives every coordinate its own clock, `MK4` bounds the signal-to-noise ratio of the
damped momentum. The equations are those of `danalab.optim.elementwise.functional`.
"""

from __future__ import annotations

from typing import Any

from danalab.optim.core.log_time import LogTimeOptimizer
from danalab.optim.core.rule import ADANA, DANA_STAR


class ADana(LogTimeOptimizer):
    """AdamW with logarithmic-time averages, damped long momentum and decaying independent weight decay.

        a = delta / (delta + t)          m <- m + a (g - m)          v <- v + a (g^2 - v)          r = sqrt(v) + eps
        p <- p - lr [ g/r + gamma3 ((1+t)^(1-kappa) + alpha_offset) m/r ]
        p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts))

    Args:
        params: parameters, named parameters, or groups of them; a group may override any setting below.
        lr: learning rate. The value at construction is the group's `peak_lr`, which schedulers do not touch.
        delta: the averages span the last 1/delta of the run [steps at t = delta: half].
        kappa: exponent of the damping; between 0 and 1, smaller is more momentum.
        gamma3: scales the momentum term.
        alpha_offset: 1 is the published implementation, for which learning rates were fitted; 0 is the paper's formula.
        weight_decay: decay a step at the peak learning rate, not multiplied by it; `wd_ts` None keeps it constant.
        wd_ts: time scale of its decay [steps].
        omega: the other form: with `horizon` (or wd_ts), lambda(t) = omega / (wd_ts + t).
        horizon: length of the run [steps]; wd_ts = horizon / 10.
        foreach: work on lists of parameters; fewer, larger kernels on a GPU.
        fused: True: one compiled pass over memory. None: chosen by device and size. False: plain torch.
        capturable: keep the clock on the device, for CUDA graphs.
        maximize: ascend.
        stochastic_rounding: round bfloat16 and float16 parameters up or down at random, so that the mean is exact.
    Raises:
        UserError: a setting out of range, both forms of weight decay, no parameters, or `fused` without a compiler.
    Source: arXiv 2602.05298.
    """

    rule = ADANA

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        delta: float = 8.0,
        kappa: float = 0.85,
        eps: float = 1e-8,
        gamma3: float = 1.0,
        alpha_offset: float = 1.0,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        omega: float | None = None,
        horizon: float | None = None,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        maximize: bool = False,
        stochastic_rounding: bool = False,
    ):
        settings = {
            "lr": lr,
            "delta": delta,
            "kappa": kappa,
            "eps": eps,
            "gamma3": gamma3,
            "alpha_offset": alpha_offset,
            "weight_decay": weight_decay,
            "wd_ts": wd_ts,
            "maximize": maximize,
            "stochastic_rounding": stochastic_rounding,
        }
        super().__init__(
            params, settings, omega=omega, horizon=horizon, foreach=foreach, fused=fused, capturable=capturable
        )


class DanaMK4(LogTimeOptimizer):
    """ADana whose damped momentum term (1+t)^(1-kappa) |m|/r is clipped at `clipsnr`; all else as in `ADana`."""

    rule = ADANA

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        delta: float = 8.0,
        kappa: float = 0.85,
        eps: float = 1e-8,
        gamma3: float = 1.0,
        alpha_offset: float = 1.0,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        omega: float | None = None,
        horizon: float | None = None,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        maximize: bool = False,
        stochastic_rounding: bool = False,
        clipsnr: float = 2.0,
    ):
        settings = {
            "lr": lr,
            "delta": delta,
            "kappa": kappa,
            "eps": eps,
            "gamma3": gamma3,
            "alpha_offset": alpha_offset,
            "clipsnr": clipsnr,
            "weight_decay": weight_decay,
            "wd_ts": wd_ts,
            "maximize": maximize,
            "stochastic_rounding": stochastic_rounding,
        }
        super().__init__(
            params, settings, omega=omega, horizon=horizon, foreach=foreach, fused=fused, capturable=capturable
        )


class DanaStar(ADana):
    """ADana with a clock for each coordinate, for sparse or uneven gradients.

        tau <- tau + a (|g| / (|g| + r) - tau)        T = max(tau t, 1)
        q   =  max(c / (1-c), 1 / (1+t)),  c = min(tau, 1/2)
        p   <- p - lr sqrt(q)/r [ g + gamma3 (T^(1-kappa) + alpha_offset) m ]

    Arguments and weight decay as in `ADana`; the state has one more tensor, `tau`.
    """

    rule = DANA_STAR


class DanaStarMK4(DanaMK4):
    """DanaStar whose damped momentum term is clipped at `clipsnr`; arguments as in `DanaMK4`."""

    rule = DANA_STAR
