"""SF-NorMuon: NorMuon at an average of its own iterates, so that neither a schedule nor the run's length is needed.

    y = (1 - beta1) z + beta1 x                          the weights that are trained: g is the gradient at y
    m <- m + (1 - momentum) (g - m)                      P = O(m)
    v <- v + (1 - beta2) (mean of P^2 along rows - v)    u = P / (sqrt(v) + eps), scaled to root mean square 0.2
    z <- (1 - lr weight_decay) z - lr u                  c = lr^2 / (sum of lr^2 over all steps)
    x <- x + c (z - x)                                   the weights that are evaluated and saved

Source: Apte et al. 2026, arXiv 2605.23061 (matrices). Ours: other parameters are schedule-free AdamW (Defazio et al.
2024, arXiv 2405.15682) with decay at z, too; the warm-up is the schedule's; the default rates are NorMuon's and
schedule-free AdamW's; z and x are both kept, so that `train()` and `eval()` are exact.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY
from typing import Any

import torch
from torch import Tensor

from danalab.optim import products
from danalab.optim.catalogue import Relative, Row
from danalab.optim.optimizers.matrix.base import MatrixOptimizer, State, decayed, moment, orthogonalised
from danalab.optim.settings import Auxiliary, CautiousDecay, Direction, NewtonSchulz, Rate, setting, takes

ROW = Row(
    name="sf-normuon",
    path="optimizers.matrix.schedule_free:SFNorMuon",
    summary="NorMuon at an average of its own iterates, without a schedule; schedule-free AdamW for the rest",
    reference="Apte et al. 2026, arXiv 2605.23061",
    elementwise=False,
    by_kind=True,
    train_eval=True,
    flops=products.orthogonalised,
    state_words=3.0,
    rate=Relative("d-muon", 1.0, "the same size of update"),
    advice="needs no decay of the learning rate: --scheduler wsd --fract-decay 0 is warm-up alone",
)


class SFNorMuonSettings(Direction, Auxiliary, CautiousDecay, NewtonSchulz, Rate):
    lr: float = 0.016
    _: KW_ONLY
    momentum: float = 0.95
    betas: tuple[float, float] = setting((0.9, 0.95), "weight of the average in the training weights; second moments")
    eps: float = 1e-8


class SFNorMuon(MatrixOptimizer):
    """NorMuon whose weights are an average of its own iterates; schedule-free AdamW for other parameters.

    The module has the equations. `train()` before training, `eval()` before evaluating and saving. The state of a
    parameter is float32: `z`, `x`, `weight_sum`, its second moments, and `momentum_buffer` of a matrix.

    Raises:
        UserError: a setting out of range, no parameters, or `use_muon` for a vector.
    Source: Apte et al. 2026, arXiv 2605.23061.
    """

    @takes(SFNorMuonSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        m = moment(state, "momentum_buffer", g).lerp_(g, 1 - group["momentum"])
        u = orthogonalised(m, group)
        v = moment(state, "row_moment", u[..., :1])
        v.lerp_(u.square().mean(dim=-1, keepdim=True), 1 - group["betas"][1])
        u = u / (v.sqrt() + group["eps"])
        norm = u.norm(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(u.dtype).tiny)
        return self._averaged(x, u * (0.2 * math.sqrt(u.shape[-2] * u.shape[-1]) / norm), state, group)

    def update_other(self, p: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        beta2 = group["betas"][1]
        v = moment(state, "exp_avg_sq", p).mul_(beta2).addcmul_(g, g, value=1 - beta2)
        u = g / ((v / (1 - beta2 ** int(state["step"]))).sqrt() + group["eps"])
        return self._averaged(p, u, state, group)

    def _averaged(self, p: Tensor, u: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        """The new y, from the update u of z."""
        if "z" not in state:
            state["z"], state["x"] = p.clone(), p.clone()
            state["weight_sum"] = torch.zeros((), dtype=torch.float64)
        state["z"] = decayed(state["z"], u, group) - group["lr"] * u
        weight = float(group["lr"]) ** 2
        state["weight_sum"] += weight
        if weight:
            state["x"].lerp_(state["z"], weight / float(state["weight_sum"]))
        return _between(state, group)

    def train(self) -> None:
        """Switch to the weights that are trained; they are what they were before `eval()`, to the last bit."""
        self._show(_between)

    def eval(self) -> None:
        """Switch to the averages."""
        self._show(lambda state, group: state["x"])

    @torch.no_grad()
    def _show(self, shown: Callable[[State, Mapping[str, Any]], Tensor]) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if "z" in self.state.get(p, {}):
                    p.copy_(shown(self.state[p], group).view(p.shape))


def _between(state: State, group: Mapping[str, Any]) -> Tensor:
    """y."""
    return state["x"].lerp(state["z"], 1 - group["betas"][0])
