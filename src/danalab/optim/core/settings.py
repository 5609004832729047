"""Checks of hyper-parameters, and the two ways to state a decaying weight decay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from danalab.errors import UserError

POSITIVE = ("delta", "wd_ts", "alpha_warmup", "beta3_warmup", "significance")
NOT_NEGATIVE = (
    *("lr", "peak_lr", "kappa", "kappa_min", "kappa_max", "eps", "gamma3", "alpha", "alpha_offset"),
    *("clipsnr", "weight_decay", "matched_rms"),
)
MAY_BE_NONE = ("wd_ts", "alpha_warmup", "beta3_warmup", "clipsnr")


def check_settings(owner: str, group: Mapping[str, Any], rates: int = 2) -> None:
    """Refuse hyper-parameters that no run can mean.

    Raises:
        UserError: see `check_numbers`; or a decay that would take more than the whole parameter in its first step.
    """
    check_numbers(owner, group, rates)
    check_first_decay(owner, group["weight_decay"], group["wd_ts"])


def check_first_decay(owner: str, weight_decay: float, wd_ts: float | None) -> None:
    """Refuse an independent weight decay that would flip signs.

    Raises:
        UserError: it takes more than a whole parameter in its first step.
    """
    first = weight_decay / (1 + 1 / wd_ts) if wd_ts is not None else weight_decay
    if first > 1:
        raise UserError(
            f"{owner}: weight_decay {weight_decay:g} with wd_ts {wd_ts} takes {first:g} of a parameter in the"
            " first step; it is independent of the learning rate and must stay below 1 (try omega and horizon)"
        )


def check_coupled_decay(owner: str, group: Mapping[str, Any]) -> None:
    """Refuse a weight decay, multiplied by the learning rate, that would flip signs.

    Raises:
        UserError: it takes a whole parameter, or more, in one step.
    """
    if isinstance(group["lr"], Tensor) and group["lr"].device.type != "cpu":
        return  # reading it would wait for the device
    taken = float(group["lr"]) * group["weight_decay"]
    if taken >= 1:
        raise UserError(
            f"{owner}: weight_decay {group['weight_decay']:g} takes lr * weight_decay = {taken:g} of a parameter in one"
            " step, must stay below 1"
        )


def check_numbers(owner: str, group: Mapping[str, Any], rates: int = 2) -> None:
    """Refuse hyper-parameters that are not the numbers they must be.

    Args:
        rates: how many numbers `betas` has, where there is one.
    Raises:
        UserError: negative or not finite, or a momentum rate outside [0, 1).
    """
    for name in (*POSITIVE, *NOT_NEGATIVE):
        if name not in group or (group[name] is None and name in MAY_BE_NONE):
            continue
        value = number_of(owner, name, group[name])
        if value is None:
            continue
        limit = "positive" if name in POSITIVE else "not negative"
        if not math.isfinite(value) or value < 0 or (value == 0 and name in POSITIVE):
            raise UserError(f"{owner}: {name} is {value}, must be finite and {limit}")
    if group.get("kappa", 0) > 6:
        raise UserError(f"{owner}: kappa is {group['kappa']}, must be between 0 (undamped momentum) and 6")
    if "betas" in group:
        betas = group["betas"]
        are_numbers = isinstance(betas, (tuple, list)) and all(is_number(b) or isinstance(b, Tensor) for b in betas)
        if not are_numbers or len(betas) != rates or not all(0 <= float(beta) < 1 for beta in betas):
            count = {2: "two", 3: "three"}[rates]
            raise UserError(f"{owner}: betas is {betas}, must be {count} numbers in [0, 1)")


def is_number(value: Any) -> bool:
    """An int or a float; True and False are neither."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number_of(owner: str, name: str, value: Any) -> float | None:
    """The number that a setting is; None for one on a device, which reading it would wait for.

    Raises:
        UserError: it is not a number, nor a tensor of one.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise UserError(f"{owner}: {name} is a tensor of shape {tuple(value.shape)}, must be a single number")
        if value.device.type != "cpu":
            return None
        value = value.item()
    if not is_number(value):
        raise UserError(f"{owner}: {name} is {value!r}, must be a number")
    return value


def resolve_decay(
    owner: str,
    *,
    weight_decay: float,
    wd_ts: float | None,
    omega: float | None,
    horizon: float | None,
) -> tuple[float, float | None]:
    """(weight_decay, wd_ts) from either form: lambda(t) = weight_decay / (1 + t/wd_ts) = omega / (wd_ts + t).

    Args:
        omega: decay strength; then wd_ts = horizon / 10 unless given, and weight_decay = omega / wd_ts.
        horizon: length of the run [steps].
    Raises:
        UserError: both forms at once, or half of one.
    """
    if omega is None:
        if horizon is not None:
            raise UserError(f"{owner}: horizon without omega says nothing; give omega too, or weight_decay and wd_ts")
        return weight_decay, wd_ts
    if weight_decay:
        raise UserError(f"{owner}: omega and weight_decay are two forms of one thing; give one of them")
    for name, value in (("omega", omega), ("horizon", horizon), ("wd_ts", wd_ts)):
        if value is not None and not is_number(value):
            raise UserError(f"{owner}: {name} is {value!r}, must be a number")
        if value is not None and not (math.isfinite(value) and (value > 0 or (name == "omega" and value == 0))):
            raise UserError(f"{owner}: {name} is {value}, must be finite and positive")
    if (horizon is None) == (wd_ts is None):
        both = "both horizon and wd_ts are given" if horizon is not None else "the horizon is missing"
        raise UserError(f"{owner}: omega needs the length of the run, but {both}; give horizon=STEPS or wd_ts")
    time_scale = wd_ts if wd_ts is not None else horizon / 10  # pyright: ignore[reportOptionalOperand]
    return omega / time_scale, time_scale
