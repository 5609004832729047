"""Dion2: Muon that orthogonalises only a part of the rows or columns in each step, those with the largest momentum.

    M <- M + g          K: the ceil(fraction n) rows (columns, if fewer) with the largest sum of |M|
    W[K] <- W[K] - lr sqrt(max(1, rows / columns)) O(M[K])          M[K] <- momentum M[K]

What is not selected stays in M for a later step. Source: Ahn, Amsel and Langford 2025, arXiv 2512.16928.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.core.optimizer import constructor_settings
from danalab.optim.matrix.step import scale
from danalab.optim.matrix.whole import MatrixOptimizer, State, decayed, moment, orthogonalised


class Dion2(MatrixOptimizer):
    """Muon on a part of each matrix at a time, AdamW on other parameters.

    Args:
        params: as for `danalab.optim.Muon`.
        lr: peak learning rate of the matrices.
        fraction: part of the rows or columns that a step moves.
        momentum: factor of the momentum that was applied; what was not stays whole.
        weight_decay: of all rows in every step.
        ns_steps, ns_method, ns_dtype, aux_lr, aux_lr_factor, aux_weight_decay, betas, eps, maximize: as for `Muon`.
    Source: Ahn, Amsel and Langford 2025, arXiv 2512.16928.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.02,
        *,
        fraction: float = 0.25,
        momentum: float = 0.95,
        ns_steps: int = 5,
        ns_method: str = "newton-schulz",
        ns_dtype: torch.dtype | str | None = None,
        weight_decay: float = 0.0,
        aux_lr: float | None = None,
        aux_lr_factor: float = 0.15,
        aux_weight_decay: float | None = None,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        maximize: bool = False,
    ):
        super().__init__(params, constructor_settings(locals()))

    def check_group(self, group: Mapping[str, Any]) -> None:
        if not 0 < group["fraction"] <= 1:
            raise UserError(f"Dion2: fraction is {group['fraction']}; it must be in (0, 1]")

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        buffer = moment(state, "momentum_buffer", x)
        buffer.add_(g)
        rows, columns = x.shape[-2:]
        cut, across = (-2, -1) if rows <= columns else (-1, -2)
        sums = buffer.abs().sum(dim=across, keepdim=True)
        # Stable, so that equal sums are chosen alike everywhere.
        order = sums.sort(dim=cut, descending=True, stable=True).indices
        chosen = order.narrow(cut, 0, math.ceil(group["fraction"] * x.shape[cut])).sort(dim=cut).values
        shape = list(x.shape)
        shape[cut] = chosen.shape[cut]
        chosen = chosen.expand(shape)
        part = buffer.gather(cut, chosen)
        buffer.scatter_(cut, chosen, group["momentum"] * part)
        step = group["lr"] * scale((rows, columns), None) * orthogonalised(part, group)
        return decayed(x, group).scatter_add(cut, chosen, -step)
