"""What makes one element-wise optimizer of ours differ from another, as data: its state, scalars and update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from danalab.optim.backends import foreach
from danalab.optim.elementwise import functional


@dataclass(frozen=True)
class Rule:
    """An update rule: what it keeps, and what it does to one parameter.

    `update` is the pure function (reference and compiled graph), `foreach` the same in place, on lists, or on `Values`
    after a `New` if the rule is element-wise (`backends.foreach`); `name` is that of the same loop in kernels.cpp.
    All take the scalars that `scalars(group, t)` returns.
    """

    name: str
    moments: tuple[str, ...]
    """Keys of the state tensors, in the order in which the update takes them after parameter and gradient."""
    scalars: Callable[[Mapping[str, Any], Any], dict[str, Any]]
    update: Callable[..., tuple[Any, ...]]
    direction: Callable[..., Any]
    """(gradient, *new moments, scalars without lr, keep and gains) -> what is subtracted, before the learning rate."""
    foreach: Callable[..., None]
    gains: tuple[str, ...]
    """Scalars that weigh the new gradient: zero makes a step that leaves the state as it is."""
    for_kernel: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """The scalars under the names of kernels.cpp, with what does not depend on the element multiplied out; `lr`, `keep`
    and `eps` go there as they are. None: there is no kernel."""
    elementwise: bool = True
    """Each element is updated by itself, so that `foreach` may be given pieces of a parameter."""


def _momentum_for_kernel(s: Mapping[str, Any]) -> dict[str, Any]:
    gamma3, clip = s["gamma3"], s["clipsnr"]
    return {
        "gain1": s["gain"],
        "gain2": s["gain"],
        "offset": gamma3 * s["alpha_offset"],
        "clip": -1.0 if clip is None else gamma3 * clip,
    }


def _adana_for_kernel(s: Mapping[str, Any]) -> dict[str, Any]:
    # Without a clip the two momentum terms are one.
    alpha = s["alpha"] + (s["alpha_offset"] if s["clipsnr"] is None else 0.0)
    return {**_momentum_for_kernel(s), "momentum": s["gamma3"] * alpha}


def _dana_star_for_kernel(s: Mapping[str, Any]) -> dict[str, Any]:
    return {**_momentum_for_kernel(s), "momentum": s["gamma3"], "t": s["t"], "exponent": 1 - s["kappa"]}


def _adamw_for_kernel(s: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "gain1": s["gain1"],
        "gain2": s["gain2"],
        "momentum": 1 / s["correction1"],
        "root_scale": s["correction2"] ** -0.5,
    }


ADANA = Rule(
    "adana",
    ("exp_avg", "exp_avg_sq"),
    functional.log_time_scalars,
    functional.adana_update,
    functional.adana_direction,
    foreach.adana_foreach,
    gains=("gain",),
    for_kernel=_adana_for_kernel,
)
DANA_STAR = Rule(
    "dana_star",
    ("exp_avg", "exp_avg_sq", "tau"),
    functional.effective_time_scalars,
    functional.dana_star_update,
    functional.dana_star_direction,
    foreach.dana_star_foreach,
    gains=("gain",),
    for_kernel=_dana_star_for_kernel,
)
ADAMW_DECAYING_WD = Rule(
    "adamw_decaying_wd",
    ("exp_avg", "exp_avg_sq"),
    functional.adam_scalars,
    functional.adamw_decaying_wd_update,
    functional.adamw_direction,
    foreach.adamw_decaying_wd_foreach,
    gains=("gain1", "gain2"),
    for_kernel=_adamw_for_kernel,
)
