"""AdamW with independent, decaying weight decay: the baseline that shares ADana's decay and nothing else."""

from __future__ import annotations

from typing import Any

from danalab.optim.core.optimizer import DecayingOptimizer
from danalab.optim.core.rule import ADAMW_DECAYING_WD


class AdamWDecayingWD(DecayingOptimizer):
    """Adam with bias correction, then p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts)).

    Args:
        betas: rates of the first and second moment.
        weight_decay, wd_ts, omega, horizon, foreach, fused, capturable, maximize, stochastic_rounding: as in `ADana`.
    Source: Loshchilov and Hutter 2019; arXiv 2602.05298 for the decay.
    """

    rule = ADAMW_DECAYING_WD

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
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
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "wd_ts": wd_ts,
            "maximize": maximize,
            "stochastic_rounding": stochastic_rounding,
        }
        super().__init__(
            params, settings, omega=omega, horizon=horizon, foreach=foreach, fused=fused, capturable=capturable
        )
