"""Hyperball: matrices of constant norm, and steps of constant angle, by the direction of Muon or of Adam.

    R = |W0|          N(x) = x / |x|, the Frobenius norm          W <- R N(W - lr R N(u))

The norm takes the place of weight decay. Source: Wen et al. 2026, arXiv 2606.16899.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.core.optimizer import constructor_settings
from danalab.optim.matrix.whole import MatrixOptimizer, State, moment, orthogonalised


class Hyperball(MatrixOptimizer):
    """The constraint; a subclass gives the direction u."""

    def direction(self, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        """u, from the gradients."""
        raise NotImplementedError

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        if "radius" not in state:
            state["radius"] = x.norm(dim=(-2, -1), keepdim=True)
            if not bool((state["radius"] > 0).all()):
                raise UserError(
                    f"{type(self).__name__}: a matrix of shape {tuple(x.shape)} is zero, and its norm stays what it is;"
                    " initialise it with other values, or put it into a group with use_muon=False"
                )
        radius, u = state["radius"], self.direction(g, state, group)
        moved = x - group["lr"] * radius * (u / _norm(u))
        return radius * (moved / _norm(moved))


class MuonH(Hyperball):
    """Muon on a hyperball: u = O(g + momentum B), B <- momentum B + g; AdamW for other parameters.

    Args:
        params: as for `danalab.optim.Muon`; matrices must not be zero.
        lr: peak learning rate of the matrices: the angle of a step.
        momentum, nesterov, ns_steps, ns_method, ns_dtype, aux_lr, betas, eps, maximize: as for `Muon`.
        aux_lr_factor: 0.15 gives 2.7e-3.
        weight_decay, aux_weight_decay: of heads; the matrices have none.
    Source: Wen et al. 2026, arXiv 2606.16899, with lr 0.018, which falls linearly over the whole run.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.018,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
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

    def direction(self, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        buffer = moment(state, "momentum_buffer", g)
        buffer.mul_(group["momentum"]).add_(g)
        return orthogonalised(g + group["momentum"] * buffer if group["nesterov"] else buffer, group)


class AdamH(Hyperball):
    """Adam on a hyperball: u = m / (sqrt(v) + eps), both corrected for their bias; AdamW for other parameters.

    Arguments as for `MuonH`; `betas` and `eps` are those of matrices, too.

    Source: Wen et al. 2026, arXiv 2606.16899, with a warm-up of 250 steps.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.018,
        *,
        weight_decay: float = 0.0,
        aux_lr: float | None = None,
        aux_lr_factor: float = 0.15,
        aux_weight_decay: float | None = None,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        maximize: bool = False,
    ):
        super().__init__(params, constructor_settings(locals()))

    def direction(self, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        m, v = moment(state, "exp_avg", g), moment(state, "exp_avg_sq", g)
        (beta1, beta2), t = group["betas"], int(state["step"])
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        return m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"])


def _norm(x: Tensor) -> Tensor:
    """Frobenius norm of each matrix [..., 1, 1]; of a zero direction the smallest number, so that nothing moves."""
    return x.norm(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
