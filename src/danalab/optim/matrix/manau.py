"""Manau: orthogonalised momentum for matrices, Dana-Star-MK4 for other parameters."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from danalab.optim.elementwise.dana_star import DANA_STAR
from danalab.optim.elementwise.scalars import decay_rate, effective_time_scalars, scaled_decay
from danalab.optim.matrix.hybrid import HybridOptimizer, coupled
from danalab.optim.matrix.step import MATCHED_MUON
from danalab.optim.settings import ManauSettings, takes


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

    @takes(ManauSettings)
    def __init__(self, params: Any, settings: dict[str, Any]):
        super().__init__(params, settings)
