"""The same updates on lists of tensors, in place, with torch's `_foreach_*` functions: few kernel launches on a GPU.

Parameters, gradients and state of one call share dtype, device and step, so every scalar is one number. Temporaries
are reused; a list is overwritten as soon as its old content is no longer needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Tensors = list[Tensor]


def adana_foreach(ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors, **s: Any) -> None:
    """`functional.adana_update` on lists, in place. `ps` are in the dtype of the moments."""
    average(ms, vs, gs, s["gain"], s["gain"])
    roots = roots_of(vs, s["eps"])
    gamma3, offset, clip = s["gamma3"], s["alpha_offset"], s["clipsnr"]
    if clip is None:
        # Two divisions in place of a list for g + c m: on a CPU its fresh memory costs more than the arithmetic.
        apply(ps, gs, roots, s["lr"], 1.0)
        apply(ps, ms, roots, s["lr"] * gamma3 * (s["alpha"] + offset), s["keep"])
    else:
        # clip(alpha m/r) = clip(alpha m, bounds +- clip r) / r: one division at the end serves all three terms.
        bounds = torch._foreach_mul(roots, clip)
        steps = torch._foreach_mul(ms, s["alpha"])
        torch._foreach_minimum_(steps, bounds)
        torch._foreach_neg_(bounds)
        torch._foreach_maximum_(steps, bounds)
        torch._foreach_mul_(steps, gamma3)
        torch._foreach_add_(steps, ms, alpha=gamma3 * offset)
        torch._foreach_add_(steps, gs)
        apply(ps, steps, roots, s["lr"], s["keep"])


def dana_star_foreach(ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors, taus: Tensors, **s: Any) -> None:
    """`functional.dana_star_update` on lists, in place. `ps` are in the dtype of the moments."""
    average(ms, vs, gs, s["gain"], s["gain"])
    roots = roots_of(vs, s["eps"])
    sizes = torch._foreach_abs(gs)
    shares = torch._foreach_add(sizes, roots)
    torch._foreach_div_(sizes, shares)
    torch._foreach_lerp_(taus, sizes, s["gain"])
    # q = max(c / (1 - c), 1 / (1 + t)) in `shares`; sizes is scratch.
    torch._foreach_copy_(shares, taus)
    torch._foreach_clamp_max_(shares, 0.5)
    torch._foreach_copy_(sizes, shares)
    torch._foreach_sub_(sizes, 1.0)
    torch._foreach_neg_(sizes)
    torch._foreach_div_(shares, sizes)
    torch._foreach_clamp_min_(shares, 1 / (1 + s["t"]))
    # roots becomes 1/n = r / sqrt(q), so that the step is (g + gamma3 (clip + offset m)) / roots.
    torch._foreach_copy_(sizes, shares)
    torch._foreach_sqrt_(sizes)
    torch._foreach_div_(roots, sizes)
    times = torch._foreach_mul(taus, s["t"])
    torch._foreach_clamp_min_(times, 1.0)
    torch._foreach_pow_(times, 1 - s["kappa"])
    torch._foreach_mul_(times, ms)
    if s["clipsnr"] is not None:
        torch._foreach_mul_(shares, roots)
        torch._foreach_mul_(shares, s["clipsnr"])
        torch._foreach_minimum_(times, shares)
        torch._foreach_neg_(shares)
        torch._foreach_maximum_(times, shares)
    torch._foreach_add_(times, ms, alpha=s["alpha_offset"])
    torch._foreach_mul_(times, s["gamma3"])
    torch._foreach_add_(times, gs)
    apply(ps, times, roots, s["lr"], s["keep"])


def adamw_decaying_wd_foreach(ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors, **s: Any) -> None:
    """`functional.adamw_decaying_wd_update` on lists, in place. `ps` are in the dtype of the moments."""
    average(ms, vs, gs, s["gain1"], s["gain2"])
    roots = list(torch._foreach_sqrt(vs))
    torch._foreach_div_(roots, s["correction2"] ** 0.5)
    torch._foreach_add_(roots, s["eps"])
    apply(ps, ms, roots, s["lr"] / s["correction1"], s["keep"])


def average(ms: Tensors, vs: Tensors, gs: Tensors, gain1: float, gain2: float) -> None:
    """m <- m + gain1 (g - m), v <- v + gain2 (g^2 - v)."""
    torch._foreach_lerp_(ms, gs, gain1)
    torch._foreach_mul_(vs, 1 - gain2)
    torch._foreach_addcmul_(vs, gs, gs, gain2)


def roots_of(vs: Tensors, eps: float) -> Tensors:
    """sqrt(v) + eps."""
    roots = list(torch._foreach_sqrt(vs))
    torch._foreach_add_(roots, eps)
    return roots


def apply(ps: Tensors, numerators: Any, denominators: Tensors, lr: float, keep: float) -> None:
    """p <- keep (p - lr numerator / denominator)."""
    torch._foreach_addcdiv_(ps, numerators, denominators, -lr)
    if keep != 1:
        torch._foreach_mul_(ps, keep)
