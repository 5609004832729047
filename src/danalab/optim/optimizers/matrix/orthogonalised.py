"""Relatives of Muon: Hyperball (MuonH, AdamH), Dion2 and Scion.

Hyperball: matrices of constant norm, and steps of constant angle, by the direction of Muon or of Adam.

    R = |W0|          N(x) = x / |x|, the Frobenius norm          W <- R N(W - lr R N(u))

The norm takes the place of weight decay. Source: Wen et al. 2026, arXiv 2606.16899.

Dion2: Muon that orthogonalises only a part of the rows or columns in each step, those with the largest momentum.

    M <- M + g          K: the ceil(fraction n) rows (columns, if fewer) with the largest sum of |M|
    W[K] <- W[K] - lr sqrt(max(1, rows / columns)) O(M[K])          M[K] <- momentum M[K]

What is not selected stays in M for a later step. Source: Ahn, Amsel and Langford 2025, arXiv 2512.16928.

Scion: steepest descent in a norm of each layer: spectral for hidden matrices, signs for other parameters.

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

from danalab.errors import UserError
from danalab.optim.optimizers.matrix.base import MatrixOptimizer, State, decayed, moment, orthogonalised
from danalab.optim.optimizers.matrix.muon import scale
from danalab.optim.settings import AdamHSettings, Dion2Settings, MuonHSettings, ScionSettings, takes


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

    Source: Wen et al. 2026, arXiv 2606.16899, with lr 0.018, which falls linearly over the whole run.
    """

    @takes(MuonHSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

    def direction(self, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        buffer = moment(state, "momentum_buffer", g)
        buffer.mul_(group["momentum"]).add_(g)
        return orthogonalised(g + group["momentum"] * buffer if group["nesterov"] else buffer, group, state)


class AdamH(Hyperball):
    """Adam on a hyperball: u = m / (sqrt(v) + eps), both corrected for their bias; AdamW for other parameters.

    Arguments as for `MuonH`; `betas` and `eps` are those of matrices, too.

    Source: Wen et al. 2026, arXiv 2606.16899, with a warm-up of 250 steps.
    """

    @takes(AdamHSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

    def direction(self, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        m, v = moment(state, "exp_avg", g), moment(state, "exp_avg_sq", g)
        (beta1, beta2), t = group["betas"], int(state["step"])
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        return m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"])


def _norm(x: Tensor) -> Tensor:
    """Frobenius norm of each matrix [..., 1, 1]; of a zero direction the smallest number, so that nothing moves."""
    return x.norm(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)


class Dion2(MatrixOptimizer):
    """Muon on a part of each matrix at a time, AdamW on other parameters.

    Source: Ahn, Amsel and Langford 2025, arXiv 2512.16928.
    """

    @takes(Dion2Settings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

    def check_group(self, group: Mapping[str, Any]) -> None:
        super().check_group(group)
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
        o = orthogonalised(part, group)
        step = group["lr"] * scale((rows, columns), None) * o
        whole = torch.zeros_like(x).scatter(cut, chosen, o) if group["cautious_decay"] else o
        return decayed(x, whole, group).scatter_add(cut, chosen, -step)


class Scion(MatrixOptimizer):
    """Spectral steps on matrices, sign steps on embeddings, heads and vectors; one momentum, no second moment.

    The paper also draws the initial weights from these balls; here they stay what the model makes them.

    Source: Pethick et al. 2025, arXiv 2502.07529; radii 50 and 3000 as in its NanoGPT runs.
    """

    @takes(ScionSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        d = moment(state, "momentum_buffer", x).lerp_(g, 1 - group["momentum"])
        rows, columns = x.shape[-2] // (group.get("heads") or 1), x.shape[-1]
        o = orthogonalised(d, group, state)
        return decayed(x, o, group) - group["lr"] * group["radius"] * math.sqrt(rows / columns) * o

    def update_other(self, p: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        d = moment(state, "momentum_buffer", p).lerp_(g, 1 - group["momentum"])
        size = group["radius"] if p.ndim < 2 else group["other_radius"] / p.shape[-1]
        return decayed(p, d, group) - group["lr"] * size * d.sign()
