"""Dana, without normalisation, for linear problems and the theory; and SignDana, which takes signs.

    a = delta / (delta + t)          m <- m + a (g - m)          alpha(t) = (1 + t)^(1 - kappa)
    Dana:      p <- p - lr [ g       + gamma3 (alpha(t) + alpha_offset) m       ]
    SignDana:  p <- p - lr [ sign(g) + gamma3 (alpha(t) + alpha_offset) sign(m) ]

Both keep one average only, and end with the independent weight decay of the family. Dana is linear in the gradients, as
the theory assumes: its learning rate is that of plain gradient descent, bounded by the curvature. In SignDana the
momentum's sign counts in full however small the average is: a step is several times ADana's, and rates are smaller.

Source: arXiv 2602.05298; Ferbach et al. 2025, arXiv 2505.16098 (Dana's damped momentum); Bernstein et al. 2018,
arXiv 1802.04434 (descent by signs).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from danalab.optim.rules.foreach import TensorList, subtract
from danalab.optim.rules.rule import Rule
from danalab.optim.rules.scalars import Scalar, log_time_scalars, step_and_decay
from danalab.optim.settings import DanaSettings, SignDanaSettings


def dana_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    *,
    lr: Scalar,
    gain: Scalar,
    weight: Scalar,
    decay_factor: Scalar = 1.0,
    cautious: Scalar | None = None,
    signs: bool = False,
) -> tuple[Tensor, Tensor]:
    """One step of Dana: m <- m + gain (g - m), then p <- decay_factor (p - lr (g + weight m))."""
    p, g = p.to(m.dtype), g.to(m.dtype)
    m = m + gain * (g - m)
    return step_and_decay(p, dana_direction(g, m, weight=weight, signs=signs), lr, decay_factor, cautious), m


def dana_direction(g: Tensor, m: Tensor, *, weight: Scalar, signs: bool = False) -> Tensor:
    """The update of `dana_update` before the learning rate, from the new average."""
    return g.sign() + weight * m.sign() if signs else g + weight * m


def _foreach(p: TensorList, g: TensorList, m: TensorList, *, signs: bool, **s: Any) -> None:
    m.lerp_(g, s["gain"])
    step = g.sign().add_(m.sign(), alpha=s["weight"]) if signs else g.add(m, alpha=s["weight"])
    subtract(p, step, s["lr"], s["decay_factor"], s["cautious"])


def _scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    s = log_time_scalars({**group, "eps": None}, t)
    weight = s["gamma3"] * (s["alpha"] + s["alpha_offset"])
    return {**{name: s[name] for name in ("lr", "gain", "decay_factor", "cautious")}, "weight": weight}


def _kernel_scalars(s: Mapping[str, Any]) -> dict[str, Any]:
    return {"gain1": s["gain"], "momentum": s["weight"]}


def _rule(name: str, settings: type, *, signs: bool) -> Rule:
    return Rule(
        name, ("exp_avg",), _scalars, partial(dana_update, signs=signs), partial(dana_direction, signs=signs),
        gains=("gain",), aged=True, foreach=partial(_foreach, signs=signs), kernel_scalars=_kernel_scalars,
        settings=settings,
    )  # fmt: skip


DANA = _rule("dana", DanaSettings, signs=False)
SIGN_DANA = _rule("sign_dana", SignDanaSettings, signs=True)
