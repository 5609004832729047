"""Updates in place on lists of tensors, a few kernel launches for all parameters of a GPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class TensorList(list[Tensor]):
    """A list of tensors with the methods of one, each a call of torch's `_foreach_` function of that name."""

    def __getattr__(self, name: str) -> "Callable[..., TensorList]":
        function = getattr(torch, f"_foreach_{name}")

        def method(*others: Any, **settings: Any) -> "TensorList":
            made = function(self, *others, **settings)
            return self if name.endswith("_") else TensorList(made)

        return method


def average(m: TensorList, v: TensorList, g: TensorList, gain1: float, gain2: float) -> None:
    """m <- m + gain1 (g - m), v <- v + gain2 (g^2 - v)."""
    m.lerp_(g, gain1)
    v.mul_(1 - gain2).addcmul_(g, g, value=gain2)


def subtract_ratio(
    p: TensorList,
    numerator: TensorList,
    denominator: TensorList,
    lr: float,
    decay_factor: float = 1.0,
    cautious: float | None = None,
) -> None:
    """`step_and_decay` of the direction numerator / denominator, which is above 0."""
    if cautious:
        decay(p, decay_factor, numerator)
    p.addcdiv_(numerator, denominator, value=-lr)
    if not cautious:
        decay(p, decay_factor)


def subtract(p: TensorList, direction: TensorList, lr: float, decay_factor: float, cautious: float | None) -> None:
    """`step_and_decay` in place."""
    if cautious:
        decay(p, decay_factor, direction)
    p.add_(direction, alpha=-lr)
    if not cautious:
        decay(p, decay_factor)


def decay(p: Any, decay_factor: float, direction: Any = None) -> None:
    """p <- decay_factor p, of a list or a tensor; with a direction only where it moves p towards zero."""
    if decay_factor != 1:
        if direction is None:
            p.mul_(decay_factor)
        else:
            towards = direction.sign().mul_(p).sign_().clamp_min_(0.0)
            p.mul_(towards.mul_(decay_factor - 1).add_(1.0))
