"""The same updates in place, written once: for tensors, and for lists of them that take the same scalars.

On a GPU a rule gets lists, as `Many`: few kernel launches. On a CPU it gets small tensors as lists too, and of each of
the others one block after another (`danalab.optim.backends.blocks`). Temporaries are made by `new`: `fresh`, or
`danalab.optim.backends.blocks.SameMemory`; they are overwritten as soon as what they held is no longer needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Values = Any
"""A Tensor or a Many."""
New = Callable[..., Values]


class Many:
    """A list of tensors with the methods of one, each of which is a call of torch's `_foreach_` function."""

    def __init__(self, tensors: list[Tensor]):
        self.tensors = tensors

    @property
    def is_cpu(self) -> bool:
        return self.tensors[0].is_cpu

    def __getattr__(self, name: str) -> Callable[..., Many]:
        function = getattr(torch, f"_foreach_{name}")

        def method(*others: Any, **settings: Any) -> Many:
            lists = [other.tensors if isinstance(other, Many) else other for other in others]
            made = function(self.tensors, *lists, **settings)
            return self if name.endswith("_") else Many(list(made))

        return method

    def clamp(self, low: float, high: float) -> Many:
        return self.clamp_min(low).clamp_max_(high)

    def clamp_(self, low: float, high: float) -> Many:
        return self.clamp_min_(low).clamp_max_(high)


def fresh(name: str, x: Values, *others: Any, over: Many | None = None, **settings: Any) -> Values:
    """The result of a method of `x` in new memory.

    Args:
        over: a temporary that is no longer needed, one of the arguments perhaps: it becomes the result.
    """
    made = getattr(x, name)(*others, **settings)
    if over is None:
        return made
    over.tensors = made.tensors
    return over


def adana_foreach(new: New, p: Values, g: Values, m: Values, v: Values, **s: Any) -> None:
    """`functional.adana_update` in place. `p` is in the dtype of the moments."""
    average(m, v, g, s["gain"], s["gain"])
    root = root_of(new, v, s["eps"])
    gamma3, offset, clip = s["gamma3"], s["alpha_offset"], s["clipsnr"]
    if clip is None:
        # Two divisions in place of memory for g + c m.
        apply(p, g, root, s["lr"], 1.0)
        apply(p, m, root, s["lr"] * gamma3 * (s["alpha"] + offset), s["keep"])
    else:
        # clip(alpha m/r) = clip(alpha m, bound +- clip r) / r: one division at the end serves all three terms.
        bound = new("mul", root, clip)
        step = new("mul", m, s["alpha"]).clamp_max_(bound)
        step.clamp_min_(bound.neg_()).mul_(gamma3).add_(m, alpha=gamma3 * offset).add_(g)
        apply(p, step, root, s["lr"], s["keep"])


def dana_star_foreach(new: New, p: Values, g: Values, m: Values, v: Values, tau: Values, **s: Any) -> None:
    """`functional.dana_star_update` in place. `p` is in the dtype of the moments."""
    average(m, v, g, s["gain"], s["gain"])
    root = root_of(new, v, s["eps"])
    share = new("abs", g)
    total = new("add", share, root)
    tau.lerp_(share.div_(total), s["gain"])
    # sqrt(q) = 1 / sqrt(1 / c - 1) for c between 1 / (2 + t), where q is 1 / (1 + t), and 1/2.
    root_q = new("clamp", tau, 1 / (2 + s["t"]), 0.5, over=share).reciprocal_().sub_(1.0).rsqrt_()
    # T^(1-kappa) = t^(1-kappa) max(tau, 1/t)^(1-kappa): the first factor is a number, `long`.
    exponent = 1 - s["kappa"]
    long = s["t"] ** exponent
    step = new("clamp_min", tau, 1 / s["t"], over=total)
    raise_to(step, exponent)
    if s["clipsnr"] is None:
        step = new("addcmul", g, step, m, value=s["gamma3"] * long, over=step)
    else:
        # The clipped term, q clip(T^(1-kappa) m n / q), is clip(T^(1-kappa) m / size) size n with size = sqrt(q) r.
        size, bound = new("mul", root, root_q), s["clipsnr"] / long
        step.mul_(m).div_(size).clamp_(-bound, bound)
        step = new("addcmul", g, step, size, value=s["gamma3"] * long, over=step)
    step.add_(m, alpha=s["gamma3"] * s["alpha_offset"])
    apply(p, step, root.div_(root_q), s["lr"], s["keep"])  # sqrt(v) / sqrt(q) is 1 / n


def adamw_decaying_wd_foreach(new: New, p: Values, g: Values, m: Values, v: Values, **s: Any) -> None:
    """`functional.adamw_decaying_wd_update` in place. `p` is in the dtype of the moments."""
    average(m, v, g, s["gain1"], s["gain2"])
    root = new("sqrt", v).div_(s["correction2"] ** 0.5).add_(s["eps"])
    apply(p, m, root, s["lr"] / s["correction1"], s["keep"])


def average(m: Values, v: Values, g: Values, gain1: float, gain2: float) -> None:
    """m <- m + gain1 (g - m), v <- v + gain2 (g^2 - v)."""
    m.lerp_(g, gain1)
    v.mul_(1 - gain2).addcmul_(g, g, value=gain2)


def root_of(new: New, v: Values, eps: float) -> Values:
    """sqrt(v) + eps."""
    return new("sqrt", v).add_(eps)


def raise_to(x: Values, exponent: float) -> None:
    """x <- x^exponent, for positive x."""
    if x.is_cpu:  # where a power takes twice as long as a logarithm and an exponential
        two_to(x.log2_(), exponent)
    else:
        x.pow_(exponent)


def two_to(x: Values, factor: float) -> None:
    """x <- 2^(factor x)."""
    if x.is_cpu:  # where the exponential to base e takes more than twice as long as that to base 2
        x.mul_(factor)
        for each in x.tensors if isinstance(x, Many) else [x]:  # torch has no such function of lists
            each.exp2_()
    else:
        x.mul_(factor * math.log(2)).exp_()


def apply(p: Values, numerator: Values, denominator: Values, lr: float, keep: float) -> None:
    """p <- keep (p - lr numerator / denominator)."""
    p.addcdiv_(numerator, denominator, value=-lr)
    if keep != 1:
        p.mul_(keep)
