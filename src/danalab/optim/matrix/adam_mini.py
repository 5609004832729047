"""Adam-mini: Adam with one second moment for each row of a matrix.

    m <- m + (1 - beta1) (g - m)          v[i] <- v[i] + (1 - beta2) (mean_j g[i, j]^2 - v[i])
    W <- (1 - lr weight_decay) W - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

Rows are output neurons. The paper has one v for all rows of a head of queries or keys; a row is a finer block of the
same kind, and needs no knowledge of heads. Embeddings, heads and vectors are AdamW's.
Source: Zhang et al. 2024, arXiv 2406.16793.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from danalab.optim.core.optimizer import constructor_settings
from danalab.optim.matrix.whole import MatrixOptimizer, State, decayed, moment


class AdamMini(MatrixOptimizer):
    """Adam with a second moment for each row of a matrix, AdamW on other parameters: half of AdamW's state.

    Args:
        params: as for `danalab.optim.Muon`.
        lr: peak learning rate of all parameters.
        aux_lr, aux_lr_factor, aux_weight_decay: of other parameters, as for `Muon`.
    Source: Zhang et al. 2024, arXiv 2406.16793.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        aux_lr: float | None = None,
        aux_lr_factor: float = 1.0,
        aux_weight_decay: float | None = None,
        maximize: bool = False,
    ):
        super().__init__(params, constructor_settings(locals()))

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        (beta1, beta2), t = group["betas"], int(state["step"])
        m = moment(state, "exp_avg", x).lerp_(g, 1 - beta1)
        v = moment(state, "row_sq", x[..., :1]).lerp_(g.square().mean(dim=-1, keepdim=True), 1 - beta2)
        root = (v / (1 - beta2**t)).sqrt() + group["eps"]
        return decayed(x, group) - group["lr"] / (1 - beta1**t) * (m / root)
