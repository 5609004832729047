"""Second moments of matrices: Adam-mini (one for each row), KL-SOAP and PSGD-Kron (Kronecker factors).

Adam-mini: Adam with one second moment for each row of a matrix.

    m <- m + (1 - beta1) (g - m)          v[i] <- v[i] + (1 - beta2) (mean_j g[i, j]^2 - v[i])
    W <- (1 - lr weight_decay) W - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

Rows are output neurons. The paper has one v for all rows of a head of queries or keys; a row is a finer block of the
same kind, and needs no knowledge of heads. Embeddings, heads and vectors are AdamW's.
Source: Zhang et al. 2024, arXiv 2406.16793.

KL-SOAP: Adam in the eigenbasis of Kronecker factors that minimise a Kullback-Leibler divergence.

    Sa <- rho Sa + (1 - rho) G Sb^-1 G^T / columns          Sb <- rho Sb + (1 - rho) G^T Sa^-1 G / rows
    G' = Qa^T G Qb, Q of eigenvectors                       m, v: Adam's moments of G'
    W <- W - lr Qa (m / (sqrt(v) + eps)) Qb^T

Between two bases S^-1 is Q diag(1 / l) Q^T, with eigenvalues l that are averaged in the basis:

    la[i] <- rho la[i] + (1 - rho) mean_j G'[i, j]^2 / lb[j]          lb likewise

A new basis is one step of the power iteration: Q of the QR decomposition of S Q; m is rotated into it. With
`orthogonalise` the step is that of D-Muon, along O(Qa (m / (sqrt(v) + eps)) Qb^T).
Source: Lin et al. 2025, arXiv 2509.03378.

PSGD-Kron: momentum, preconditioned by P = Q^T Q with a Kronecker product Q of two upper triangular matrices.

Q is fitted by gradient descent on its group to E[g^T P g + v^T P^-1 v], v standard normal:

    A = Ql G Qr^T          B = Ql^-T V Qr^-1          M = A A^T - B B^T
    Ql <- Ql - 0.1 triu(M) Ql / |A A^T + B B^T|          Qr likewise with A^T A and B^T B
    W <- W - lr clip(Ql^T Ql m Qr^T Qr),  m the momentum without bias, clip: root mean square at most 1.1

Source: Li 2015, arXiv 1512.04202; Li 2024, arXiv 2402.04553; Pooladzandi and Li 2024, arXiv 2402.11858.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.optimizers.matrix.base import MatrixOptimizer, State, decayed, moment, orthogonalised
from danalab.optim.optimizers.matrix.muon import scale
from danalab.optim.products import fit_interval
from danalab.optim.settings import AdamMiniSettings, KLSOAPSettings, KronSettings, takes
from danalab.optim.values import options_on


class AdamMini(MatrixOptimizer):
    """Adam with a second moment for each row of a matrix, AdamW on other parameters: half of AdamW's state.

    Source: Zhang et al. 2024, arXiv 2406.16793.
    """

    @takes(AdamMiniSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        (beta1, beta2), t = group["betas"], int(state["step"])
        m = moment(state, "exp_avg", x).lerp_(g, 1 - beta1)
        v = moment(state, "row_sq", x[..., :1]).lerp_(g.square().mean(dim=-1, keepdim=True), 1 - beta2)
        u = m / ((v / (1 - beta2**t)).sqrt() + group["eps"])
        return decayed(x, u, group) - group["lr"] / (1 - beta1**t) * u


MATCHED_RMS = 0.2
FIRST_EIGENVALUE = 0.1
"""Of both factors, before any average."""


class KLSOAP(MatrixOptimizer):
    """SOAP with the factors of KL-Shampoo on matrices, AdamW on other parameters.

    The first step of a matrix sets up its basis and moves nothing. The state has two square matrices for each side.

    Source: Lin et al. 2025, arXiv 2509.03378.
    """

    @takes(KLSOAPSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

    def check_group(self, group: Mapping[str, Any]) -> None:
        super().check_group(group)
        for name in () if group["orthogonalise"] else {"ns_method", "ns_steps"} & options_on(group).keys():
            raise UserError(f"KLSOAP: {name} has no effect without orthogonalise; set it, too")

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
        if group["orthogonalise"]:
            u = scale(x.shape[-2:], MATCHED_RMS) * orthogonalised(u, group)
        _update_factors(g, projected, state, 1 - rho)
        if (t - 1) % group["precondition_frequency"] == 0:
            _turn(m, state)
        return decayed(x, u, group) - group["lr"] * u


def _set_up(g: Tensor, state: State, gain: float) -> None:
    rows, columns = g.shape[-2:]
    for side, factor, size in (("a", g @ g.mT / columns, rows), ("b", g.mT @ g / rows, columns)):
        state[f"factor_{side}"] = gain * factor
        state[f"basis_{side}"] = torch.linalg.eigh(state[f"factor_{side}"]).eigenvectors.flip(-1).contiguous()
        state[f"eigenvalues_{side}"] = g.new_full((*g.shape[:-2], size, 1), FIRST_EIGENVALUE)


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


FIT_LR = 0.1
LARGEST_RMS = 1.1
BALANCE_EVERY = 100
"""Steps between two balances of the scales of Ql and Qr, which the fit leaves free."""


class Kron(MatrixOptimizer):
    """PSGD with a Kronecker product on matrices, AdamW on other parameters.

    The fit is made in every step at first, and in every 33rd in the end: its share of steps falls from 1 after
    `flat_start` steps as e^(-t / 1000) to 0.03. Its noise depends on step and shape alone, so that runs are
    reproducible; the reference draws it anew. The state has a square matrix for each side.

    Source: arXiv 1512.04202, 2402.04553, 2402.11858.
    """

    @takes(KronSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        t = int(state["step"])
        m = moment(state, "momentum_buffer", x).lerp_(g, 1 - group["momentum"]) / (1 - group["momentum"] ** t)
        for side, size in (("left", x.shape[-2]), ("right", x.shape[-1])):
            if side not in state:
                state[side] = torch.eye(size, dtype=x.dtype, device=x.device).expand(*x.shape[:-2], size, size).clone()
        left, right = state["left"], state["right"]
        if t % fit_interval(t, group["flat_start"]) == 0:
            fit(left, right, m, probe(t, x))
        if t % BALANCE_EVERY == 0:
            ratio = (_largest(right) / _largest(left)).sqrt()
            left.mul_(ratio)
            right.div_(ratio)
        u = left.mT @ (left @ m @ right.mT) @ right
        rms = u.square().mean(dim=(-2, -1), keepdim=True).sqrt()
        return decayed(x, u, group) - group["lr"] * u * (LARGEST_RMS / (rms + 1e-6)).clamp_max(1.0)


def probe(t: int, like: Tensor) -> Tensor:
    """V of step t: the same on every device and rank."""
    generator = torch.Generator().manual_seed(t)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def fit(left: Tensor, right: Tensor, g: Tensor, noise: Tensor) -> None:
    """One step of the fit, in place."""
    a = left @ g @ right.mT
    b = torch.linalg.solve_triangular(left.mT, noise, upper=False)
    b = torch.linalg.solve_triangular(right, b, upper=True, left=False)
    for q, of_g, of_noise in ((left, a @ a.mT, b @ b.mT), (right, a.mT @ a, b.mT @ b)):
        rate = FIT_LR / (spectral_norm_bound(of_g + of_noise) + torch.finfo(q.dtype).tiny)
        q.sub_(rate * torch.triu(of_g - of_noise) @ q)


def spectral_norm_bound(a: Tensor) -> Tensor:
    """A lower bound of the spectral norm of symmetric matrices, [..., 1, 1]: one power iteration from the longest
    column."""
    unit = _largest(a).clamp_min(torch.finfo(a.dtype).tiny)
    a = a / unit
    longest = a.square().sum(dim=-2, keepdim=True).argmax(dim=-1, keepdim=True)
    x = a @ a.gather(-1, longest.expand(*a.shape[:-1], 1))
    x = x / x.norm(dim=-2, keepdim=True).clamp_min(torch.finfo(a.dtype).tiny)
    return unit * (a @ x).norm(dim=-2, keepdim=True)


def _largest(a: Tensor) -> Tensor:
    return a.abs().amax(dim=(-2, -1), keepdim=True)
