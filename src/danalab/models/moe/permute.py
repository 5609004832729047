"""Tokens to the rows of their experts, and back: gathers in both directions, also of gradients.

Autograd's gradient of a gather is a scatter-add; here the K rows of each token are known, so that the gradient is a
gather, too. Shapes: T tokens, K experts of a token, R = T K rows, D model dimension, E experts.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Order(NamedTuple):
    """The rows of the tokens' copies, sorted by expert."""

    token_of_row: Tensor
    """Token of each row."""
    rows_of_token: Tensor
    """Row of each copy of a token."""


def sort_by_expert(chosen_TK: Tensor) -> Order:
    """The order of copies by expert, and by token within an expert."""
    flat = chosen_TK.flatten()
    order = flat.argsort(stable=True)
    row = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return Order(order // chosen_TK.shape[1], row.view(chosen_TK.shape))


def spread(x_TD: Tensor, order: Order) -> Tensor:
    """Each token once for each of its experts, [R, D], sorted; differentiable once."""
    return _Spread.apply(x_TD, *order)  # pyright: ignore[reportReturnType] - apply is typed loosely


def combine(y_RD: Tensor, weights_TK: Tensor, order: Order) -> Tensor:
    """[T, D]: the sum of each token's rows, weighted; differentiable once."""
    return _Combine.apply(y_RD, weights_TK, *order)  # pyright: ignore[reportReturnType] - apply is typed loosely


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, token_R: Tensor, row_TK: Tensor) -> Tensor:
        ctx.save_for_backward(row_TK)
        return x_TD.index_select(0, token_R)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (row_TK,) = ctx.saved_tensors
        return _sum(grads[0], row_TK), None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_RD: Tensor, weights_TK: Tensor, token_R: Tensor, row_TK: Tensor) -> Tensor:
        ctx.save_for_backward(y_RD, weights_TK, token_R, row_TK)
        return _sum(y_RD, row_TK, weights_TK)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        y_RD, weights_TK, token_R, row_TK = ctx.saved_tensors
        seen_RD = grads[0].index_select(0, token_R)
        grad_weights = (seen_RD * y_RD).sum(-1, dtype=weights_TK.dtype)[row_TK]
        weight_R = torch.empty_like(grad_weights.flatten()).scatter_(0, row_TK.flatten(), weights_TK.flatten())
        return seen_RD.mul_(weight_R.unsqueeze(1)), grad_weights, None, None


def _sum(y_RD: Tensor, row_TK: Tensor, weights_TK: Tensor | None = None) -> Tensor:
    """Of the rows of each token, in the order of its experts."""
    total = None
    for k in range(row_TK.shape[1]):
        part = y_RD.index_select(0, row_TK[:, k])
        if weights_TK is None:
            total = part if total is None else total.add_(part)
        else:
            weight = weights_TK[:, k : k + 1].to(part.dtype)
            total = part.mul_(weight) if total is None else total.addcmul_(part, weight)
    assert total is not None
    return total
