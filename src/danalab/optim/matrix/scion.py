"""Scion: steepest descent in a norm of each layer: spectral for hidden matrices, signs for other parameters.

    d <- momentum d + (1 - momentum) g
    matrices:  W <- (1 - lr weight_decay) W - lr radius sqrt(rows / columns) O(d)
    others:    w <- (1 - lr weight_decay) w - lr other_radius sign(d) / columns          vectors: columns = 1, radius

With weight_decay 1 the weights stay in the balls of these radii (the paper's constrained form), with 0 it is the
unconstrained one. Source: Pethick et al. 2025, arXiv 2502.07529.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.optim.core.optimizer import constructor_settings
from danalab.optim.elementwise.scalars import coupled_decay_factor
from danalab.optim.matrix.whole import MatrixOptimizer, State, decayed, moment, orthogonalised


class Scion(MatrixOptimizer):
    """Spectral steps on matrices, sign steps on embeddings, heads and vectors; one momentum, no second moment.

    The paper also draws the initial weights from these balls; here they stay what the model makes them.

    Args:
        params: as for `danalab.optim.Muon`.
        lr: peak learning rate.
        momentum: rate of the gradients' average.
        radius: of hidden matrices, and of vectors.
        other_radius: of embeddings and heads.
        weight_decay: 1 for the constrained form.
        aux_lr, aux_lr_factor, aux_weight_decay: of other parameters, as for `Muon`.
        ns_steps, ns_method, ns_dtype, maximize: as for `Muon`.
    Source: Pethick et al. 2025, arXiv 2502.07529; radii 50 and 3000 as in its NanoGPT runs.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 3.6e-4,
        *,
        momentum: float = 0.9,
        radius: float = 50.0,
        other_radius: float = 3000.0,
        ns_steps: int = 5,
        ns_method: str = "newton-schulz",
        ns_dtype: torch.dtype | str | None = None,
        weight_decay: float = 0.0,
        aux_lr: float | None = None,
        aux_lr_factor: float = 1.0,
        aux_weight_decay: float | None = None,
        maximize: bool = False,
    ):
        super().__init__(params, constructor_settings(locals()))

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        d = moment(state, "momentum_buffer", x).lerp_(g, 1 - group["momentum"])
        rows, columns = x.shape[-2:]
        return decayed(x, group) - group["lr"] * group["radius"] * math.sqrt(rows / columns) * orthogonalised(d, group)

    def update_other(self, p: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        d = moment(state, "momentum_buffer", p).lerp_(g, 1 - group["momentum"])
        size = group["radius"] if p.ndim < 2 else group["other_radius"] / p.shape[-1]
        return coupled_decay_factor(group) * p - group["lr"] * size * d.sign()
