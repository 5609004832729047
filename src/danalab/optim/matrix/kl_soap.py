"""KL-SOAP: Adam in the eigenbasis of Kronecker factors that minimise a Kullback-Leibler divergence.

    Sa <- rho Sa + (1 - rho) G Sb^-1 G^T / columns          Sb <- rho Sb + (1 - rho) G^T Sa^-1 G / rows
    G' = Qa^T G Qb, Q of eigenvectors                       m, v: Adam's moments of G'
    W <- W - lr Qa (m / (sqrt(v) + eps)) Qb^T

Between two bases S^-1 is Q diag(1 / l) Q^T, with eigenvalues l that are averaged in the basis:

    la[i] <- rho la[i] + (1 - rho) mean_j G'[i, j]^2 / lb[j]          lb likewise

A new basis is one step of the power iteration: Q of the QR decomposition of S Q; m is rotated into it.
Source: Lin et al. 2025, arXiv 2509.03378.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.core.optimizer import constructor_settings
from danalab.optim.matrix.whole import MatrixOptimizer, State, decayed, moment

FIRST_EIGENVALUE = 0.1
"""Of both factors, before any average."""


class KLSOAP(MatrixOptimizer):
    """SOAP with the factors of KL-Shampoo on matrices, AdamW on other parameters.

    The first step of a matrix sets up its basis and moves nothing. The state has two square matrices for each side.

    Args:
        params: as for `danalab.optim.Muon`.
        lr: peak learning rate of all parameters.
        betas: of Adam's moments.
        shampoo_beta: rho.
        precondition_frequency: steps between new bases.
        aux_lr, aux_lr_factor, aux_weight_decay: of other parameters, as for `Muon`.
    Source: Lin et al. 2025, arXiv 2509.03378.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 3e-3,
        *,
        betas: tuple[float, float] = (0.95, 0.9),
        eps: float = 1e-8,
        shampoo_beta: float = 0.9,
        precondition_frequency: int = 10,
        weight_decay: float = 0.0,
        aux_lr: float | None = None,
        aux_lr_factor: float = 1.0,
        aux_weight_decay: float | None = None,
        maximize: bool = False,
    ):
        super().__init__(params, constructor_settings(locals()))

    def check_group(self, group: Mapping[str, Any]) -> None:
        if not 0 <= group["shampoo_beta"] < 1:
            raise UserError(f"KLSOAP: shampoo_beta is {group['shampoo_beta']}; it must be in [0, 1)")
        if group["precondition_frequency"] < 1:
            raise UserError(f"KLSOAP: precondition_frequency is {group['precondition_frequency']}; it must be positive")

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        rho, t = group["shampoo_beta"], int(state["step"])
        m, v = moment(state, "exp_avg", g), moment(state, "exp_avg_sq", g)
        if "basis_a" not in state:
            try:
                _set_up(g, state, 1 - rho)
            except torch.linalg.LinAlgError as error:
                raise UserError("KLSOAP: the first gradient of a matrix is not finite; skip such steps") from error
            return x
        qa, qb = state["basis_a"], state["basis_b"]
        projected = qa.mT @ g @ qb
        m.lerp_(projected, 1 - group["betas"][0])
        v.lerp_(projected.square(), 1 - group["betas"][1])
        c1, c2 = (1 - beta ** (t - 1) for beta in group["betas"])
        u = qa @ (m / c1 / ((v / c2).sqrt() + group["eps"])) @ qb.mT
        _update_factors(g, projected, state, 1 - rho)
        if (t - 1) % group["precondition_frequency"] == 0:
            _turn(m, state)
        return decayed(x, group) - group["lr"] * u


def _set_up(g: Tensor, state: State, gain: float) -> None:
    rows, columns = g.shape[-2:]
    for side, factor, size in (("a", g @ g.mT / columns, rows), ("b", g.mT @ g / rows, columns)):
        state[f"factor_{side}"] = gain * factor
        state[f"basis_{side}"] = torch.linalg.eigh(state[f"factor_{side}"]).eigenvectors.flip(-1).contiguous()
        state[f"eigenvalues_{side}"] = torch.full_like(g[..., :1, :1], FIRST_EIGENVALUE).expand(
            *g.shape[:-2], size, 1
        ).clone()  # fmt: skip


def _inverse(eigenvalues: Tensor) -> Tensor:
    """1 / l, bounded as the authors' code does: a direction without gradients has no eigenvalue."""
    largest = max(10, min(eigenvalues.shape[-2], 4000))
    return eigenvalues.clamp_min(largest**-2).reciprocal()


def _update_factors(g: Tensor, projected: Tensor, state: State, gain: float) -> None:
    """Both factors and their eigenvalues, from the inverses before this step."""
    rows, columns = g.shape[-2:]
    inverse_a, inverse_b = _inverse(state["eigenvalues_a"]), _inverse(state["eigenvalues_b"])
    half_a, half_b = g @ state["basis_b"] * inverse_b.mT.sqrt(), g.mT @ state["basis_a"] * inverse_a.mT.sqrt()
    state["factor_a"].lerp_(half_a @ half_a.mT / columns, gain)
    state["factor_b"].lerp_(half_b @ half_b.mT / rows, gain)
    squares = projected.square()
    state["eigenvalues_a"].lerp_((squares * inverse_b.mT).mean(dim=-1, keepdim=True), gain)
    state["eigenvalues_b"].lerp_((squares * inverse_a).mean(dim=-2, keepdim=True).mT, gain)


def _turn(m: Tensor, state: State) -> None:
    """New bases, and the first moment in them."""
    whole = state["basis_a"] @ m @ state["basis_b"].mT
    for side in "ab":
        turned = torch.linalg.qr(state[f"factor_{side}"] @ state[f"basis_{side}"]).Q
        state[f"basis_{side}"] = turned.contiguous()
    m.copy_(state["basis_a"].mT @ whole @ state["basis_b"])
