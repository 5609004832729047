"""The same updates on lists of tensors, in place, with torch's `_foreach_*` functions: few kernel launches on a GPU.

Parameters, gradients and state of one call share dtype, device and step, so every scalar is one number. Temporaries
are made by `new`: `fresh` on a GPU, `danalab.optim.blocks.SameMemory` on a CPU; a list is overwritten as soon as what
it held is no longer needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tensors = list[Tensor]
New = Callable[..., Tensors]


def fresh(name: str, xs: Tensors, *others: Any, over: Tensors | None = None, **settings: Any) -> Tensors:
    """The results of a function on lists of tensors, in new memory.

    Args:
        name: of the function of torch; here it is that of `_foreach_` with this name.
        xs, others, settings: its arguments.
        over: temporaries that are no longer needed, `xs` perhaps: they become the result.
    """
    made = list(getattr(torch, f"_foreach_{name}")(xs, *others, **settings))
    if over is None:
        return made
    over[:] = made
    return over


def adana_foreach(new: New, ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors, **s: Any) -> None:
    """`functional.adana_update` on lists, in place. `ps` are in the dtype of the moments."""
    average(ms, vs, gs, s["gain"], s["gain"])
    roots = roots_of(new, vs, s["eps"])
    gamma3, offset, clip = s["gamma3"], s["alpha_offset"], s["clipsnr"]
    if clip is None:
        # Two divisions in place of a list for g + c m: on a CPU its fresh memory costs more than the arithmetic.
        apply(ps, gs, roots, s["lr"], 1.0)
        apply(ps, ms, roots, s["lr"] * gamma3 * (s["alpha"] + offset), s["keep"])
    else:
        # clip(alpha m/r) = clip(alpha m, bounds +- clip r) / r: one division at the end serves all three terms.
        bounds = new("mul", roots, clip)
        steps = new("mul", ms, s["alpha"])
        torch._foreach_minimum_(steps, bounds)
        torch._foreach_neg_(bounds)
        torch._foreach_maximum_(steps, bounds)
        torch._foreach_mul_(steps, gamma3)
        torch._foreach_add_(steps, ms, alpha=gamma3 * offset)
        torch._foreach_add_(steps, gs)
        apply(ps, steps, roots, s["lr"], s["keep"])


def dana_star_foreach(new: New, ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors, taus: Tensors, **s: Any) -> None:
    """`functional.dana_star_update` on lists, in place. `ps` are in the dtype of the moments."""
    average(ms, vs, gs, s["gain"], s["gain"])
    roots = roots_of(new, vs, s["eps"])
    shares = new("abs", gs)
    sums = new("add", shares, roots)
    torch._foreach_div_(shares, sums)
    torch._foreach_lerp_(taus, shares, s["gain"])
    # sqrt(q) = 1 / sqrt(1 / c - 1) for c between 1 / (2 + t), where q is 1 / (1 + t), and 1/2.
    roots_q = between(new, taus, 1 / (2 + s["t"]), 0.5, over=shares)
    torch._foreach_reciprocal_(roots_q)
    torch._foreach_sub_(roots_q, 1.0)
    torch._foreach_rsqrt_(roots_q)
    # T^(1-kappa) = t^(1-kappa) max(tau, 1/t)^(1-kappa): the first factor is a number, `long`.
    exponent = 1 - s["kappa"]
    long = s["t"] ** exponent
    steps = new("clamp_min", taus, 1 / s["t"], over=sums)
    raise_to(new, steps, exponent)
    if s["clipsnr"] is None:
        steps = new("addcmul", gs, steps, ms, value=s["gamma3"] * long, over=steps)
    else:
        # The clipped term, q clip(T^(1-kappa) m n / q), is clip(T^(1-kappa) m / size) size n with size = sqrt(q) r.
        sizes, bound = new("mul", roots, roots_q), s["clipsnr"] / long
        torch._foreach_mul_(steps, ms)
        torch._foreach_div_(steps, sizes)
        between(new, steps, -bound, bound, over=steps)
        steps = new("addcmul", gs, steps, sizes, value=s["gamma3"] * long, over=steps)
    torch._foreach_add_(steps, ms, alpha=s["gamma3"] * s["alpha_offset"])
    torch._foreach_div_(roots, roots_q)  # 1 / n
    apply(ps, steps, roots, s["lr"], s["keep"])


def adamw_decaying_wd_foreach(new: New, ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors, **s: Any) -> None:
    """`functional.adamw_decaying_wd_update` on lists, in place. `ps` are in the dtype of the moments."""
    average(ms, vs, gs, s["gain1"], s["gain2"])
    roots = new("sqrt", vs)
    torch._foreach_div_(roots, s["correction2"] ** 0.5)
    torch._foreach_add_(roots, s["eps"])
    apply(ps, ms, roots, s["lr"] / s["correction1"], s["keep"])


def average(ms: Tensors, vs: Tensors, gs: Tensors, gain1: float, gain2: float) -> None:
    """m <- m + gain1 (g - m), v <- v + gain2 (g^2 - v)."""
    torch._foreach_lerp_(ms, gs, gain1)
    torch._foreach_mul_(vs, 1 - gain2)
    torch._foreach_addcmul_(vs, gs, gs, gain2)


def roots_of(new: New, vs: Tensors, eps: float) -> Tensors:
    """sqrt(v) + eps."""
    roots = new("sqrt", vs)
    torch._foreach_add_(roots, eps)
    return roots


def between(new: New, xs: Tensors, low: float, high: float, over: Tensors) -> Tensors:
    """x, held between two numbers."""
    if xs[0].is_cpu:
        return new("clamp", xs, low, high, over=over)
    held = new("clamp_min", xs, low, over=over)
    torch._foreach_clamp_max_(held, high)
    return held


def raise_to(new: New, xs: Tensors, exponent: float) -> None:
    """x <- x^exponent, for positive x."""
    if not xs[0].is_cpu:
        torch._foreach_pow_(xs, exponent)
        return
    # On a CPU a power takes twice as long as a logarithm and an exponential.
    torch._foreach_log2_(xs)
    two_to(new, xs, exponent)


def two_to(new: New, xs: Tensors, factor: float) -> None:
    """x <- 2^(factor x)."""
    if xs[0].is_cpu:  # where the exponential to base e takes more than twice as long
        torch._foreach_mul_(xs, factor)
        new("exp2", xs, over=xs)
    else:
        torch._foreach_mul_(xs, factor * math.log(2))
        torch._foreach_exp_(xs)


def apply(ps: Tensors, numerators: Any, denominators: Tensors, lr: float, keep: float) -> None:
    """p <- keep (p - lr numerator / denominator)."""
    torch._foreach_addcdiv_(ps, numerators, denominators, -lr)
    if keep != 1:
        torch._foreach_mul_(ps, keep)
