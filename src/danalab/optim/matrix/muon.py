"""Muon and D-Muon: orthogonalised momentum for matrices, AdamW for other parameters; Manau: Dana-Star-MK4 for them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from danalab.optim.elementwise.adamw_decaying_wd import ADAMW_DECAYING_WD
from danalab.optim.elementwise.dana_star import DANA_STAR
from danalab.optim.elementwise.scalars import (
    adam_scalars,
    coupled_decay_factor,
    decay_rate,
    effective_time_scalars,
    scaled_decay,
)
from danalab.optim.matrix.hybrid import HybridOptimizer, coupled
from danalab.optim.matrix.step import MATCHED_MUON, MUON
from danalab.optim.settings import DMuonSettings, ManauSettings, MuonSettings, takes


def _adamw_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """Scalars for (m / c1) / ((sqrt(v) + eps) / sqrt(c2)): eps is added before the correction of the root."""
    scalars = adam_scalars(group, t)
    return {**scalars, "eps": group["eps"] / scalars["correction2"] ** 0.5}


ADAMW_COUPLED = replace(
    ADAMW_DECAYING_WD,
    scalars=coupled(_adamw_scalars, lambda group, t: coupled_decay_factor(group)),
)


class Muon(HybridOptimizer):
    """Orthogonalised momentum on matrices, AdamW on embeddings, heads and vectors.

        B <- momentum B + g          X = g + momentum B (nesterov), or g
        p <- (1 - lr weight_decay) p - lr sqrt(max(1, rows / columns)) O(X)

    O sets all singular values to nearly 1 (`danalab.optim.matrix.newton_schulz`), for all matrices of a shape at once.
    Convolutions count as matrices [out, in * kernel].

    Args:
        params: parameters, named parameters, or groups. A group sets `use_muon` (bool) or `kind` ("matrix",
            "experts": stacks of matrices, "router", "head", "embedding", "vector"). A group without either is split:
            parameters with two dimensions or more, less than 10,000 rows, and a name that is not an embedding's or a
            head's are matrices. `build_optimizer("muon", model)` uses the kinds that the model declares.
        lr: peak learning rate of the matrices; schedules scale both learning rates.
        momentum: rate of the momentum.
        nesterov: add the momentum to the gradient; without it, the gradient alone is orthogonalised.
        ns_steps: number of steps of the orthogonalisation.
        ns_method: "newton-schulz" or "polar-express".
        ns_dtype: "float32", "bfloat16" or "float64" for the orthogonalisation; None: bfloat16 on GPUs, float32 on CPUs.
        weight_decay: decay per step divided by the learning rate.
        aux_lr: peak learning rate of other parameters; None: aux_lr_factor x lr.
        aux_lr_factor: 0.15 gives 3e-3 at the usual 0.02 of matrices.
        aux_weight_decay: of other parameters; None: weight_decay.
        cautious_decay, scaled_decay: as in `ADana`.
        betas, eps: of AdamW; eps is added to the root of the second moment before bias correction.
        foreach, fused: backend for other parameters, as in `ADana`.
        maximize: ascend.
        stochastic_rounding: round bfloat16 and float16 parameters up or down at random, without bias.
    Raises:
        UserError: a setting out of range, no parameters, or `use_muon` for a vector.
    Source: K. Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """

    matrix_rule = MUON
    other_rule = ADAMW_COUPLED

    @takes(MuonSettings)
    def __init__(self, params: Any, settings: dict[str, Any]):
        super().__init__(params, {**settings, "wd_ts": None})


class DMuon(HybridOptimizer):
    """Muon with the update size of AdamW, so that one learning rate and one weight decay suit all parameters.

        B <- momentum B + g          X = g + momentum B (nesterov), or B
        p <- (1 - lr weight_decay) p - lr matched_rms sqrt(max(rows, columns)) O(X)

    Arguments as in `Muon`, except:

    Args:
        aux_lr_factor: 1, one learning rate for all parameters.
        matched_rms: root mean square of the update of matrices.
    Source: Liu et al. 2025, arXiv 2502.16982 ("Muon is scalable for LLM training").
    """

    matrix_rule = MATCHED_MUON
    other_rule = ADAMW_COUPLED

    @takes(DMuonSettings)
    def __init__(self, params: Any, settings: dict[str, Any]):
        super().__init__(params, {**settings, "wd_ts": None})


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
