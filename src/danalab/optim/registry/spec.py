"""The registry's entry of an optimizer: everything that is known before it is built; its settings read from text."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from danalab.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn
import re

from danalab.errors import nearest

RENAMED = {"adamw_lr": "aux_lr", "adamw_weight_decay": "aux_weight_decay"}
"""Settings by their names in version 0.1 -> by those of today: configurations of old runs and sweeps have them."""


def current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a configuration by their names of today.

    Raises:
        UserError: both names of one setting are given.
    """
    for old, new in RENAMED.items():
        if old in settings and new in settings:
            raise UserError(f"{old} is the former name of {new}, and both are given; leave {old} out")
    return {RENAMED.get(name, name): value for name, value in settings.items()}


@dataclass(frozen=True)
class Setting:
    """A hyper-parameter that `build_optimizer` takes."""

    default: Any
    help: str
    kind: Literal["", "number", "integer", "switch", "word", "numbers"] = ""
    """Type of its values; "" is inferred from the default, and means a number where that is None."""


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer's entry: how it is built, its settings, and what a trainer must know."""

    name: str
    summary: str
    reference: str
    build: "Callable[..., torch.optim.Optimizer]"
    """(parameter groups, lr, **settings) -> optimizer."""
    settings: dict[str, Setting]
    decay: Literal["independent", "coupled", "none"]
    """Whether weight_decay is multiplied by the schedule factor alone, or by the learning rate."""
    aliases: tuple[str, ...] = ()
    log_time: bool = False
    """Depends on the step count; has `coefficients()`, `collect_stats()` and `update_rms()`."""
    elementwise: bool = True
    """Each coordinate is updated independently, so that any sharding of the parameters is exact."""
    per_parameter: bool = True
    """Each parameter is updated independently; False: a statistic over all of them couples them."""
    sums_over_ranks: bool = False
    """These statistics are sums over coordinates, and its class completes them over ranks (`sum_over`)."""
    in_parts: bool = False
    """A step may be made in several calls, each with the gradients of other parameters: it counts no steps itself."""
    one_rate: bool = False
    """All groups are updated at the learning rate of the first one."""
    train_eval: bool = False
    """Its `train()` and `eval()` must be called around evaluation."""
    own_weights: bool = False
    """Keeps slow weights besides the model's, so that nothing else may set the model's."""
    clocks: tuple[str, ...] = ()
    """Keys of parameter groups that are state, not settings, present from construction on."""
    closure: bool = False
    """`step` needs a closure."""
    hessian: bool = False
    """Needs Hessian estimates; has `hessian_is_due()` and `update_hessian()`."""
    extra: str | None = None
    """Extra that must be installed."""
    groups: "Callable[[nn.Module], list[dict[str, Any]]] | None" = None
    """Parameter groups of a model; None: `parameter_groups`."""
    advice: str = ""
    """One sentence of advice for training with it."""


def settings_of(optimizer: Callable[..., Any], help_texts: Mapping[str, str], **defaults: Any) -> dict[str, Setting]:
    """The settings of an optimizer class, from its constructor's signature; `defaults` overrides.

    Raises:
        KeyError: a setting without a help text (a programmer's mistake).
    """
    found = {}
    for name, parameter in inspect.signature(optimizer).parameters.items():
        if name not in ("params", "lr") and parameter.kind is not parameter.VAR_KEYWORD:
            default = defaults.get(name, parameter.default)
            if type(default) is int and "float" in str(parameter.annotation):
                default = float(default)
            found[name] = Setting(default, help_texts[name], _kind(parameter.annotation) if default is None else "")
    return found


def _kind(annotation: Any) -> Any:
    """The kind of a setting that may be None, by its annotation."""
    words = str(annotation)
    for word, kind in (("bool", "switch"), ("str", "word"), ("dtype", "word"), ("float", "number"), ("int", "integer")):
        if word in words:
            return kind
    return "number"


_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
WANTED = {
    "number": "a number",
    "integer": "an integer",
    "switch": "true or false",
    "word": "a word",
    "numbers": "numbers, as in 0.9,0.95",
}


def kind_of(setting: Setting) -> str:
    """number, integer, switch, word or numbers."""
    if setting.kind:
        return setting.kind
    kinds = {bool: "switch", int: "integer", str: "word", tuple: "numbers"}
    return kinds.get(type(setting.default), "number")


def read_settings(spec: OptimizerSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values for `build_optimizer`, by name in `spec`'s order.

    Args:
        given: names (with hyphens or underscores) -> values or their text.
    """
    named = current_names({name.replace("-", "_"): value for name, value in given.items()})
    for name in named:
        if name not in spec.settings:
            hint = nearest(name, spec.settings)
            raise UserError(
                f"optimizer '{spec.name}' has no setting '{name}'{hint}; it has: {', '.join(spec.settings)}"
            )
    return {name: read_value(f"{spec.name}: {name}", setting, named[name])
            for name, setting in spec.settings.items() if name in named}  # fmt: skip


def read_value(where: str, setting: Setting, value: Any) -> Any:
    """One value, from its text or from YAML or JSON.

    Raises:
        UserError: the message begins with `where`.
    """
    kind = kind_of(setting)
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        if setting.default is None:
            return None
        raise UserError(f"{where} is {value}; it must be {WANTED[kind]}")
    try:
        return _READERS[kind](value, setting)
    except (TypeError, ValueError) as error:
        wanted = WANTED[kind]
        if kind == "numbers" and setting.default is not None:
            wanted = f"{len(setting.default)} numbers, as in {written(setting.default)}"
        raise UserError(f"{where} is {value!r}; it must be {wanted}") from error


def written(value: Any) -> str:
    """A value as the text of a flag."""
    if isinstance(value, (tuple, list)):
        return ",".join(written(item) for item in value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _switch(value: Any, _: Setting) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() not in _WORDS:
        raise ValueError
    return _WORDS[str(value).lower()]


def _number(value: Any, _: Setting) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _integer(value: Any, _: Setting) -> int:
    if isinstance(value, bool) or float(value) != int(float(value)):
        raise TypeError
    return int(float(value))


def _word(value: Any, _: Setting) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _numbers(value: Any, setting: Setting) -> tuple[float | None, ...]:
    parts = [part for part in re.split(r"[,\s]+", value.strip("()[] ")) if part] if isinstance(value, str) else value
    own = setting.default
    may_be_none = own is not None and None in own
    found = tuple(None if may_be_none and part in (None, "none") else float(part) for part in parts)
    if own is not None and len(found) != len(own):
        raise ValueError
    return found


_READERS = {"switch": _switch, "number": _number, "integer": _integer, "word": _word, "numbers": _numbers}
