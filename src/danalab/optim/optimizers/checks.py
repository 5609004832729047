"""Checks of hyper-parameters and parameters, ours and those given to optimizers of libraries; forms of weight decay."""

import difflib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from danalab.errors import UserError, first_line
from danalab.optim.optimizers.groups import called
from danalab.optim.rules.age import age_path
from danalab.optim.run_length import DECAY_BOUND, FREE_WD_TS
from danalab.optim.run_length import OMEGA as USUAL_OMEGA
from danalab.optim.settings import RANGES, Declared, plain_settings
from danalab.optim.step.state_dict import LATER
from danalab.optim.values import WANTED, Setting, kind_of, settings_of

log = logging.getLogger(__name__)

LARGEST_CONSTANT_DECAY = 0.01
"""A constant decay above it halves weights in fewer than 70 steps: it was probably meant for AdamW."""

TORCH_KEYS = ("lr", "eps", "params", "param_names", "initial_lr", "max_lr", "min_lr", "base_lr", "swa_lr")
"""Keys of groups that torch and its schedulers write."""

MAY_BE_NONE = ("wd_ts", "decay_bound", "alpha_warmup", "beta3_warmup", "clipsnr", "fresh")


def check_settings(
    owner: str, group: Mapping[str, Any], rates: int = 2, declared: Mapping[str, Declared] = MappingProxyType({})
) -> None:
    """Refuse hyper-parameters that make no sense, with an independent weight decay among them."""
    check_numbers(owner, group, rates, declared)
    if group.get("decay_bound") is None:
        check_first_decay(owner, group["weight_decay"], group["wd_ts"])


def check_group_keys(owner: str, group: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse keys that look like misspelt settings; any other key may be a caller's own."""
    known = [name for name in known if name not in ("lr", "eps")]  # too short: much is near them
    for key in group:
        meant = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        if meant and key not in known and key not in TORCH_KEYS:
            raise UserError(f"{owner}: a parameter group has '{key}', which is no setting; did you mean '{meant[0]}'?")


def check_first_decay(owner: str, weight_decay: float, wd_ts: float | None) -> None:
    """Refuse an independent weight decay that would flip signs."""
    first = first_decay(weight_decay, wd_ts)
    if first > 1:
        raise UserError(
            f"{owner}: weight_decay {weight_decay:g} with wd_ts {wd_ts} takes {first:g} of a parameter in the"
            " first step; it is independent of the learning rate and must stay below 1 (try omega and horizon)"
        )


def first_decay(weight_decay: float, wd_ts: float | None) -> float:
    """Share of a weight that independent weight decay takes in the first step, at the peak learning rate."""
    return weight_decay / (1 + 1 / wd_ts) if wd_ts is not None else weight_decay


def warn_of_large_decay(owner: str, weight_decay: float, wd_ts: float | None) -> None:
    """Warn of an independent weight decay that empties weights, as AdamW's usual 0.1 does."""
    first = first_decay(weight_decay, wd_ts)
    if first > 0.25 or (wd_ts is None and first > LARGEST_CONSTANT_DECAY):
        half = math.ceil(math.log(0.5) / math.log1p(-min(first, 0.999)))
        log.warning(
            f"{owner}: weight_decay {weight_decay:g} takes {first:.3g} of each weight in the first step, half in {half}"
            f" steps: it is independent of the learning rate, unlike AdamW's; omega={USUAL_OMEGA} and horizon=STEPS"
            " give a decay bounded by the rate"
        )


def warn_of_equal_rates(owner: str, groups: Iterable[Mapping[str, Any]]) -> bool:
    """Warn of groups that were built with different learning rates and now have the same; whether it did."""
    groups = [group for group in groups if group["params"] and not isinstance(group["lr"], Tensor)]
    rates, peaks = ({group[key] for group in groups} for key in ("lr", "peak_lr"))
    if len(rates) != 1 or len(peaks) == 1 or not (rate := rates.pop()):
        return False
    log.warning(
        f"{owner}: every group has the learning rate {rate:g}, but they were built with"
        f" {', '.join(f'{peak:g}' for peak in sorted(peaks))}: a scheduler or a loop that sets one rate for all undoes"
        " their ratio; multiply each group's peak_lr instead (OneCycleLR: max_lr=[each group's peak_lr])"
    )
    return True


def check_coupled_decay(owner: str, group: Mapping[str, Any]) -> None:
    """Refuse a weight decay, multiplied by the learning rate, that would flip signs."""
    if isinstance(group["lr"], Tensor) and group["lr"].device.type != "cpu":
        return  # reading it would wait for the device
    taken = float(group["lr"]) * group["weight_decay"]
    if taken >= 1:
        raise UserError(
            f"{owner}: weight_decay {group['weight_decay']:g} takes lr * weight_decay = {taken:g} of a parameter in one"
            " step; it must stay below 1"
        )


def check_numbers(
    owner: str, group: Mapping[str, Any], rates: int = 2, declared: Mapping[str, Declared] = MappingProxyType({})
) -> None:
    """Refuse hyper-parameters that are no numbers or out of range; `betas`, where there are, have `rates` numbers.

    `declared`: the optimizer's own settings, whose ranges stand beside their defaults.
    """
    ranges = {**RANGES, **{name: own.within for name, own in declared.items() if own.within is not None}}
    for name, (accept, words) in ranges.items():
        may_be_none = name in (*MAY_BE_NONE, "beta2") or (name in declared and declared[name].default is None)
        if name not in group or (group[name] is None and may_be_none):
            continue
        value = number_of(owner, name, group[name])
        if value is not None and not (math.isfinite(value) and accept(value)):
            raise UserError(f"{owner}: {name} is {value}; it must be finite and {words}")
    if "buffer_ages" in group:
        ages = group["buffer_ages"]
        if not (
            isinstance(ages, (tuple, list))
            and len(ages) == 2
            and all(map(is_number, ages))
            and 0 < ages[0] < ages[1] < math.inf
        ):
            raise UserError(f"{owner}: buffer_ages is {ages}; it must be two ages [steps], the shorter first")
    if group.get("age") is not None:
        age_path(owner, str(group["age"]))
        if group.get("momentum_cooldown"):
            raise UserError(f"{owner}: age and momentum_cooldown both set the momentum's memory; give one of them")
    elif group.get("buffers", 1) != 1:
        raise UserError(f"{owner}: buffers is {group['buffers']}; its averages need a mean age: set age, too")
    if "betas" in group:
        betas = group["betas"]
        are_numbers = isinstance(betas, (tuple, list)) and all(is_number(b) or isinstance(b, Tensor) for b in betas)
        if not are_numbers or len(betas) != rates or not all(0 <= float(beta) < 1 for beta in betas):
            count = {2: "two", 3: "three"}[rates]
            raise UserError(f"{owner}: betas is {betas}; it must be {count} numbers in [0, 1)")


def is_number(value: Any) -> bool:
    """An int or a float; True and False are neither."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number_of(owner: str, name: str, value: Any) -> float | None:
    """The value of a setting as a number; None if it is on a device, since reading it would wait for the device."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise UserError(f"{owner}: {name} is a tensor of shape {tuple(value.shape)}; it must be a single number")
        if value.device.type != "cpu":
            return None
        value = value.item()
    if not is_number(value):
        raise UserError(f"{owner}: {name} is {value!r}; it must be a number")
    return value


def resolve_decay(
    owner: str, *, weight_decay: float, wd_ts: float | None, omega: float | None, horizon: float | None
) -> tuple[float, float | None]:
    """(weight_decay, wd_ts) from either form: lambda(t) = weight_decay / (1 + t/wd_ts) = omega / (wd_ts + t).

    With omega, wd_ts = horizon / 10 [steps of the run] unless given, without a horizon FREE_WD_TS, and
    weight_decay = omega / wd_ts.
    """
    if omega is None:
        if horizon is not None:
            raise UserError(f"{owner}: horizon has no effect without omega; give omega too, or weight_decay and wd_ts")
        return weight_decay, wd_ts
    if weight_decay:
        raise UserError(f"{owner}: omega and weight_decay both set the weight decay; give one of them")
    for name, value in (("omega", omega), ("horizon", horizon), ("wd_ts", wd_ts)):
        if value is not None and not is_number(value):
            raise UserError(f"{owner}: {name} is {value!r}; it must be a number")
        if value is not None and not (math.isfinite(value) and (value > 0 or (name == "omega" and value == 0))):
            raise UserError(f"{owner}: {name} is {value}; it must be finite and positive")
    return omega_decay(owner, omega, wd_ts, horizon)


OMEGA = ("omega", "horizon", "decay_bound")


def with_coupled_decay(owner: str, lr: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose omega and horizon became a weight decay that is multiplied by `lr`: omega / (lr horizon).

    Over a run this decays weights by e^-omega at a constant learning rate. It is at most `decay_bound` (None:
    DECAY_BOUND, 0: no bound). A decay that falls over time has the horizon as its `wd_ts`.
    """
    omega, horizon, bound = (settings.get(key) for key in OMEGA)
    rest = {key: value for key, value in settings.items() if key not in OMEGA}
    if omega is None and horizon is None:
        return {**rest, "weight_decay": min(rest["weight_decay"], bound)} if bound else rest
    if omega is None or horizon is None:
        raise UserError(f"{owner}: omega and horizon belong together; give both, or weight_decay")
    decay, _ = resolve_decay(owner, weight_decay=0.0, wd_ts=None, omega=omega, horizon=horizon)
    decay = decay / 10 / float(lr) if float(lr) > 0 else 0.0  # resolved: omega / (horizon / 10)
    bound = DECAY_BOUND if bound is None else bound
    decay = min(decay, bound) if bound else decay
    if rest.get("weight_decay"):
        raise UserError(
            f"{owner}: omega and weight_decay both set the weight decay; give one of them (at lr {float(lr):g}, omega"
            f" {omega:g} over {horizon:g} steps is weight_decay {decay:.4g})"
        )
    falls = "wd_ts" in rest and rest["wd_ts"] is None
    return {**rest, "weight_decay": decay, **({"wd_ts": float(horizon)} if falls else {})}


def refuse_two_decays(owner: str, group: Mapping[str, Any], omega: float | None) -> None:
    """Refuse a group with a weight decay where the optimizer has omega."""
    if omega is not None and group.get("weight_decay") and group.get("omega") is None:
        raise UserError(
            f"{owner}: a group has weight_decay {group['weight_decay']}, and the optimizer omega {omega:g}; give one of"
            " them: leave weight_decay out of groups that decay (0 is no decay)"
        )


def omega_decay(owner: str, omega: Any, wd_ts: Any, horizon: Any) -> tuple[Any, Any]:
    """The second form of `resolve_decay` alone; its values may be of any type that can be divided."""
    if horizon is not None and wd_ts is not None:
        raise UserError(f"{owner}: horizon and wd_ts both set the time scale of omega's decay; give one of them")
    time_scale = wd_ts if wd_ts is not None else FREE_WD_TS if horizon is None else horizon / 10
    return omega / time_scale, time_scale


def in_one_line(owner: str, build: Callable[[], Any]) -> Any:
    """What `build` returns; a library's complaint becomes one line."""
    try:
        return build()
    except UserError:
        raise
    except (ArithmeticError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{owner}: {first_line(error)}") from error


def check_parameters(owner: str, groups: Iterable[Mapping[str, Any]]) -> None:
    """Refuse parameters that are not real floating-point tensors, or that are given twice."""
    seen: set[int] = set()
    for group in groups:
        for name, p in group["params"]:
            if not p.dtype.is_floating_point:
                raise UserError(
                    f"{owner}: {called(name, p)} is {p.dtype}; only real floating-point parameters can be optimized"
                )
            if id(p) in seen:
                raise UserError(f"{owner}: {called(name, p)} is given twice")
            seen.add(id(p))


def check_gradients(owner: str, params: Sequence[Tensor], names: Sequence[str] = ()) -> None:
    """Refuse sparse gradients."""
    for name, p in zip(names or [""] * len(params), params, strict=True):
        if p.grad is not None and p.grad.layout != torch.strided:
            raise UserError(f"{owner}: {called(name, p)} has a {p.grad.layout} gradient; it must be dense")


_SEEN: WeakKeyDictionary[torch.optim.Optimizer, dict[int, Any]] = WeakKeyDictionary()
"""Of each optimizer's groups: the keys, those but `lr`, their values, and `lr`, as they were checked last."""


def check_own_groups(optimizer: Any, check: Callable[[Mapping[str, Any]], None], *keys: str) -> None:
    """`check_changed` for an optimizer of ours, whose groups have all its settings, and these keys."""

    def facts() -> tuple[Mapping[str, Setting], Iterable[str]]:
        needed = (key for key in optimizer.defaults if key not in (*LATER, "differentiable"))  # torch adds the last
        return settings_of(type(optimizer), {}), (*needed, *keys)

    check_changed(optimizer, optimizer.name, optimizer.param_groups, facts, check)


def check_changed(
    optimizer: torch.optim.Optimizer,
    owner: str,
    groups: Iterable[dict[str, Any]],
    facts: Callable[[], tuple[Mapping[str, Setting], Iterable[str]]],
    check: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> None:
    """Check groups that have changed since the last step: trainers write into them, and rebuild them.

    `facts`: the optimizer's settings, and the keys that every group has beside `lr`. UserError: a group lacks a key, or
    has a value of another type, or one that `check` refuses.
    """
    seen = _SEEN.setdefault(optimizer, {})
    for number, group in enumerate(groups):
        keys, watched, values, lr = seen.get(id(group), ([], [], [], None))
        same = keys == list(group) and all(map(is_, map(group.get, watched), values))
        if same and group["lr"] is lr:
            continue
        known, needed = facts()
        needed = ("lr", *needed)
        if missing := [key for key in needed if key not in group]:
            raise UserError(f"{owner}: parameter group {number} has no {missing[0]}; every group must have it")
        # Not other keys: some libraries keep tensors of one element in their groups, whose shape is in checkpoints.
        settings = ("lr",) if same else (*needed, *known)
        changed = plain_settings({key: group[key] for key in settings if key in group})
        group.update(changed)
        check_numbers_of(owner, known, changed)
        if not same:
            check(group)
        watched = [key for key in group if key != "lr"]
        seen[id(group)] = list(group), watched, list(map(group.get, watched)), group["lr"]


def check_numbers_of(owner: str, known: Mapping[str, Setting], given: Mapping[str, Any]) -> None:
    """Refuse known settings (and `lr`) of another type, not finite, or negative where the default is not."""
    for name, value in given.items():
        if name == "lr":
            _check_number(owner, name, value, 1e-3)
        elif name in known and not (value is None and (known[name].default is None or name in MAY_BE_NONE)):
            _check_value(owner, name, value, known[name])
            within = known[name].within
            if within is not None and value is not None and not within[0](value):
                raise UserError(f"{owner}: {name} is {value}; it must be {within[1]}")


def _check_value(owner: str, name: str, value: Any, setting: Setting) -> None:
    kind = kind_of(setting)
    if kind == "numbers":
        own = setting.default if isinstance(setting.default, (tuple, list)) else None
        if not isinstance(value, (tuple, list)) or (own is not None and len(value) != len(own)):
            raise UserError(f"{owner}: {name} is {value!r}; it must be {len(own) if own else 'a tuple of'} numbers")
        for number, of_default in zip(value, own or (None,) * len(value), strict=True):
            if number is not None or of_default is not None:
                _check_number(owner, name, number, of_default)
        return
    if kind in ("number", "integer"):
        _check_number(owner, name, value, setting.default)
    if not isinstance(value, _TYPES[kind]):
        raise UserError(f"{owner}: {name} is {value!r}; it must be {WANTED[kind]}")


_TYPES: dict[str, Any] = {"number": object, "integer": (int, Tensor), "switch": bool, "word": (str, torch.dtype),
                           "kinds": (Mapping, str)}  # fmt: skip


def _check_number(owner: str, name: str, value: Any, usual: Any) -> None:
    """`value` is a setting or a part of it, `usual` its default."""
    number = number_of(owner, name, value)
    may_be_negative = is_number(usual) and usual < 0
    if number is not None and (not math.isfinite(number) or (number < 0 and not may_be_negative)):
        raise UserError(f"{owner}: {name} is {number}; it must be finite and not negative")
