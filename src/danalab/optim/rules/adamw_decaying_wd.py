"""AdamW with independent, decaying weight decay: the baseline that differs from ADana in everything but the decay."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from danalab.optim.rules.foreach import TensorList, average, subtract_ratio
from danalab.optim.rules.rule import Rule
from danalab.optim.rules.scalars import Scalar, adam_scalars, step_and_decay


def adamw_decaying_wd_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    lr: Scalar,
    gain1: Scalar,
    gain2: Scalar,
    decay_factor: Scalar = 1.0,
    cautious: Scalar | None = None,
    **terms: Scalar,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Adam followed by independent weight decay.

        m <- m + (1-beta1) (g - m)          v <- v + (1-beta2) (g^2 - v)
        p <- k (p - lr m / (1-beta1^t) / (sqrt(v / (1-beta2^t)) + eps))

    `gain1`, `gain2` are 1 - beta; `correction1`, `correction2` are 1 - beta^t.
    """
    p, g = p.to(m.dtype), g.to(m.dtype)
    m = m + gain1 * (g - m)
    v = v + gain2 * (g * g - v)
    return step_and_decay(p, adamw_direction(g, m, v, **terms), lr, decay_factor, cautious), m, v


def adamw_direction(
    g: Tensor, m: Tensor, v: Tensor, *, correction1: Scalar, correction2: Scalar, eps: Scalar = 1e-8
) -> Tensor:
    """The update of `adamw_decaying_wd_update` before the learning rate, from the new moments."""
    return (m / correction1) / (v.sqrt() / correction2**0.5 + eps)


def adamw_decaying_wd_foreach(p: TensorList, g: TensorList, m: TensorList, v: TensorList, **s: Any) -> None:
    """`adamw_decaying_wd_update` in place; `p` is in the dtype of the moments."""
    average(m, v, g, s["gain1"], s["gain2"])
    root = v.sqrt().div_(s["correction2"] ** 0.5).add_(s["eps"])
    subtract_ratio(p, m, root, s["lr"] / s["correction1"], s["decay_factor"], s["cautious"])


def adam_kernel_scalars(s: Mapping[str, Any]) -> dict[str, Any]:
    """The kernels' numbers of Adam's averages and their corrections."""
    corrections = {"momentum": 1 / s["correction1"], "root_scale": s["correction2"] ** -0.5}
    return {"gain1": s["gain1"], "gain2": s["gain2"], **corrections}


ADAMW_DECAYING_WD = Rule(
    "adamw_decaying_wd",
    ("exp_avg", "exp_avg_sq"),
    scalars=adam_scalars,
    update=adamw_decaying_wd_update,
    direction=adamw_direction,
    gains=("gain1", "gain2"),
    foreach=adamw_decaying_wd_foreach,
    kernel_scalars=adam_kernel_scalars,
)
