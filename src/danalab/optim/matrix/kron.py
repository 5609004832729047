"""PSGD-Kron: momentum, preconditioned by P = Q^T Q with a Kronecker product Q of two upper triangular matrices.

Q is fitted by gradient descent on its group to E[g^T P g + v^T P^-1 v], v standard normal:

    A = Ql G Qr^T          B = Ql^-T V Qr^-1          M = A A^T - B B^T
    Ql <- Ql - 0.1 triu(M) Ql / |A A^T + B B^T|          Qr likewise with A^T A and B^T B
    W <- W - lr clip(Ql^T Ql m Qr^T Qr),  m the momentum without bias, clip: root mean square at most 1.1

Source: Li 2015, arXiv 1512.04202; Li 2024, arXiv 2402.04553; Pooladzandi and Li 2024, arXiv 2402.11858.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.optim.core.optimizer import constructor_settings
from danalab.optim.matrix.whole import MatrixOptimizer, State, decayed, moment

FIT_LR = 0.1
LARGEST_RMS = 1.1
BALANCE_EVERY = 100
"""Steps between two balances of the scales of Ql and Qr, which the fit leaves free."""


class Kron(MatrixOptimizer):
    """PSGD with a Kronecker product on matrices, AdamW on other parameters.

    The fit is made in every step at first, and in every 33rd in the end: its share of steps falls from 1 after
    `flat_start` steps as e^(-t / 1000) to 0.03. Its noise depends on step and shape alone, so that runs are
    reproducible; the reference draws it anew. The state has a square matrix for each side.

    Args:
        params: as for `danalab.optim.Muon`.
        lr: peak learning rate of the matrices: a third to a quarter of AdamW's.
        momentum: rate of the gradients' average.
        flat_start: steps at the start that all make the fit.
        aux_lr_factor: 3, AdamW's rate for other parameters.
        aux_lr, aux_weight_decay, betas, eps, maximize: as for `Muon`.
    Source: arXiv 1512.04202, 2402.04553, 2402.11858.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 3e-4,
        *,
        momentum: float = 0.9,
        flat_start: int = 500,
        weight_decay: float = 0.0,
        aux_lr: float | None = None,
        aux_lr_factor: float = 3.0,
        aux_weight_decay: float | None = None,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        maximize: bool = False,
    ):
        super().__init__(params, constructor_settings(locals()))

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
        return decayed(x, group) - group["lr"] * u * (LARGEST_RMS / (rms + 1e-6)).clamp_max(1.0)


def fit_interval(t: int, flat_start: int) -> int:
    """Steps between two fits at step t."""
    return round(1 / min(1.0, max(0.03, math.exp(-(t - flat_start) / 1000))))


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
