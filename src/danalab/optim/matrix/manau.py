"""Manau: orthogonalised momentum for matrices, Dana-Star-MK4 for other parameters."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from danalab.optim.core.optimizer import constructor_settings
from danalab.optim.elementwise.dana_star import DANA_STAR
from danalab.optim.elementwise.scalars import decay_rate, effective_time_scalars, scaled_decay
from danalab.optim.matrix.hybrid import HybridOptimizer, coupled
from danalab.optim.matrix.step import MATCHED_MUON


def _decay_factor(group: Mapping[str, Any], t: int) -> float:
    return 1 - group["lr"] * scaled_decay(group, decay_rate(group, t))


DANA_STAR_COUPLED = replace(DANA_STAR, scalars=coupled(effective_time_scalars, _decay_factor))


class Manau(HybridOptimizer):
    """D-Muon on matrices, DanaStarMK4 on embeddings, heads and vectors.

    With `dana_momentum` the momentum of matrices is in logarithmic time too (`momentum` and `nesterov` are not used):

        a = delta / (delta + t)          B <- B + a (g - B)          X = g + t^(1-kappa) B

    Other parameters are updated as by `DanaStarMK4`, but decay comes first and is multiplied by the learning rate:
    p <- p (1 - lr weight_decay / (1 + t / wd_ts)). The decay of matrices is lr weight_decay, constant.

    Arguments as in `DMuon` and `DanaStarMK4`, except:

    Args:
        dana_momentum: log-time momentum for the matrices.
    Source: Muon after Liu et al. 2025, arXiv 2502.16982; the Dana family after arXiv 2602.05298.
    """

    matrix_rule = MATCHED_MUON
    other_rule = DANA_STAR_COUPLED

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        ns_method: str = "newton-schulz",
        ns_dtype: torch.dtype | str | None = None,
        matched_rms: float = 0.2,
        dana_momentum: bool = False,
        delta: float = 8.0,
        kappa: float = 0.85,
        clipsnr: float = 2.0,
        eps: float = 1e-8,
        gamma3: float = 1.0,
        alpha_offset: float = 1.0,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        aux_lr: float | None = None,
        aux_lr_factor: float = 1.0,
        aux_weight_decay: float | None = None,
        cautious_decay: bool = False,
        scaled_decay: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        maximize: bool = False,
        stochastic_rounding: bool = False,
    ):
        super().__init__(params, constructor_settings(locals()))
