"""What the kernels take, in C++ and in Triton alike: scalars by name, and tensors with one order of elements.

lr, decay_factor, eps
sign                    -1 to maximize
gain1, gain2, gain3     weights of the new gradient in m, in v, in the third moment
momentum, offset, clip  see the rules in kernels.cpp; clip < 0: none
t, exponent             dana_star: t, 1 - kappa; auto_dana: log2(1 + t), kappa_max - kappa_min
root_scale              adamw, ademamix: 1 / sqrt(1 - beta2^t)
floor                   auto_dana: square of |m| / r below which m is taken for noise
cautious                1: decay only coordinates that the step moves towards zero (Triton: compiled for it)
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from danalab.optim.rules.rule import Rule
from danalab.optim.step.state import moment_dtype

NAMES = (
    *("lr", "decay_factor", "eps", "sign", "gain1", "gain2", "gain3", "momentum", "offset", "clip"),
    *("t", "exponent", "root_scale", "floor", "cautious"),
)

_UNUSED = {**dict.fromkeys(NAMES, 0.0), "clip": -1.0}


def kernel_scalars(rule: Rule, group: Mapping[str, Any], scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `NAMES` from the rule's scalars, in order: numbers, or tensors where step counts are on the device."""
    assert rule.kernel_scalars is not None  # `choose_backend` sends no other rule here
    return {
        **_UNUSED,
        "lr": scalars["lr"],
        "decay_factor": scalars["decay_factor"],
        # The kernels divide by the square of sqrt(v) + eps, which must not vanish.
        "eps": max(scalars.get("eps", 0.0), 1e-18),
        "sign": -1.0 if group["maximize"] else 1.0,
        "cautious": scalars.get("cautious") or 0.0,
        **rule.kernel_scalars(scalars),
    }


def same_order(p: Tensor, g: Tensor, m: Tensor) -> bool:
    """Whether a kernel can take a parameter, its gradient and its moments as they are, as lines of elements."""
    if g.dtype != p.dtype or m.dtype != moment_dtype(p):
        return False
    if p.is_contiguous() and g.is_contiguous() and m.is_contiguous():
        return True
    return p.stride() == g.stride() == m.stride()
