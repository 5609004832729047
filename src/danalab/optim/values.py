"""A setting with its kind and help, and the spec of an optimizer that has them; values read from text and written."""

import inspect
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from danalab.errors import UserError, nearest
from danalab.optim.catalogue import Row
from danalab.optim.settings import KINDS, Around, NewtonSchulz, Range

if TYPE_CHECKING:
    import torch

RENAMED = {"adamw_lr": "aux_lr", "adamw_weight_decay": "aux_weight_decay"}
"""Settings by their names in version 0.1 -> by those of today: configurations of old runs and sweeps have them."""


def current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a configuration by their names of today; UserError: both names of one are given."""
    for old, new in RENAMED.items():
        if old in settings and new in settings:
            raise UserError(f"{old} is the former name of {new}, and both are given; leave {old} out")
    return {RENAMED.get(name, name): value for name, value in settings.items()}


@dataclass(frozen=True)
class Setting:
    """A hyper-parameter that `build_optimizer` takes."""

    default: Any
    help: str
    kind: Literal["", "number", "integer", "switch", "word", "numbers", "kinds"] = ""
    """Type of its values; "" is inferred from the default, and means a number where that is None."""
    within: Range | None = None
    """Range of a number, where it was declared with the setting."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Row):
    """A row with what is known once the optimizer is imported: how it is built, and its settings."""

    build: "Callable[..., torch.optim.Optimizer]"
    """(parameter groups, lr, **settings) -> optimizer."""
    settings: dict[str, Setting]


def settings_of(optimizer: Callable[..., Any], help_texts: Mapping[str, str], **defaults: Any) -> dict[str, Setting]:
    """The settings of an optimizer class, from its constructor's signature; `defaults` overrides.

    Help is what was declared with the setting, else of `help_texts`.
    """
    settings = {}
    for name, parameter in inspect.signature(optimizer).parameters.items():
        if name not in ("params", "lr") and parameter.kind is not parameter.VAR_KEYWORD:
            default = defaults.get(name, parameter.default)
            if type(default) is int and "float" in str(parameter.annotation):
                default = float(default)
            own = getattr(getattr(optimizer, "__init__", None), "declared", {}).get(name)
            text = help_texts.get(name, name.replace("_", " ")) if own is None else own.help
            kind = _kind(parameter.annotation) if default is None else ""
            settings[name] = Setting(default, text, kind, None if own is None else own.within)
    return settings


def _kind(annotation: Any) -> Any:
    """The kind of a setting that may be None, by its annotation."""
    words = str(annotation)
    if words.startswith("Mapping"):
        return "kinds"
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
    "kinds": "settings of kinds, as in embedding:lr=2e-3,beta2=0.995 head:lr_factor=0.1",
}


def kind_of(setting: Setting) -> str:
    """number, integer, switch, word, numbers or kinds."""
    if setting.kind:
        return setting.kind
    kinds = {bool: "switch", int: "integer", str: "word", tuple: "numbers"}
    return kinds.get(type(setting.default), "number")


def require_known(optimizer: str, known: Mapping[str, Setting], given: Mapping[str, Any]) -> None:
    """Refuse settings that the optimizer does not have."""
    for name in given:
        if name not in known:
            others = those_with(name)
            have = f"; {others} have it" if others else f"{nearest(name, known)}; it has: {', '.join(known)}"
            raise UserError(f"{optimizer} has no setting '{name}'{have}")


OPTIONS: dict[str, Any] = {
    **{
        name: own.default
        for settings in (Around, NewtonSchulz)
        for name, own in inspect.signature(settings).parameters.items()
    },
    "orthogonalise": False,
    "cautious_decay": False,
}
"""Options of the update of matrices -> the value that is off, or usual."""


def those_with(option: str) -> str:
    """The optimizers that have one of `OPTIONS`, by name; "" for any other setting."""
    if option not in (*OPTIONS, "heads"):
        return ""
    setting, registry = "per_head" if option == "heads" else option, import_module("danalab.optim.registry")
    names: list[str] = registry.list_optimizers()
    return ", ".join(name for name in names if setting in registry.optimizer_spec(name).settings)


def options_on(group: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `OPTIONS` that change the update of a group, and the `heads` of its matrices."""
    acting = ("heads", *OPTIONS) if group.get("use_muon") else ("cautious_decay",)
    on = {name: group[name] for name in acting if group.get(name, OPTIONS.get(name)) != OPTIONS.get(name)}
    unused = {"per_head"} if on.get("normalise") == "normuon" else {"per_head", "row_beta"}
    return {name: value for name, value in on.items() if name not in unused}


def refuse_options(owner: str, group: Mapping[str, Any], known: Container[str]) -> None:
    """Refuse options in a group that its optimizer does not have and would ignore."""
    for name, value in options_on({**group, "use_muon": True}).items():
        if ("per_head" if name == "heads" else name) not in known:
            raise UserError(
                f"{owner}: a group sets {name} to {value!r}, which does nothing here; {those_with(name)} have it"
            )


def read_value(where: str, setting: Setting, value: Any) -> Any:
    """One value, from its text or from YAML or JSON; a UserError begins with `where`."""
    kind = kind_of(setting)
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        if setting.default is None:
            return None
        raise UserError(f"{where} is {value}; it must be {WANTED[kind]}")
    try:
        return _READERS[kind](value, setting)
    except UserError as error:
        raise UserError(f"{where}{error}") from None
    except (TypeError, ValueError) as error:
        wanted = WANTED[kind]
        if kind == "numbers" and setting.default is not None:
            wanted = f"{len(setting.default)} numbers, as in {written(setting.default)}"
        raise UserError(f"{where} is {value!r}; it must be {wanted}") from error


def written(value: Any) -> str:
    """A value as the text of a flag."""
    if isinstance(value, Mapping):
        text = {kind: ",".join(f"{name}={written(one).replace(',', '/')}" for name, one in own.items())
                for kind, own in value.items()}  # fmt: skip
        return " ".join(f"{kind}:{settings}" for kind, settings in text.items())
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


def _word(value: Any, _: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _numbers(value: Any, setting: Setting) -> tuple[float | None, ...]:
    parts = [part for part in re.split(r"[,\s]+", value.strip("()[] ")) if part] if isinstance(value, str) else value
    own = setting.default
    may_be_none = own is not None and None in own
    numbers = tuple(None if may_be_none and part in (None, "none") else float(part) for part in parts)
    if own is not None and len(numbers) != len(own):
        raise ValueError
    return numbers


def read_kinds(owner: str, given: Any, known: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """`by_kind` as kind -> settings, from a mapping or text: embedding:lr=2e-3,beta2=0.995 head:lr_factor=0.1.

    `beta1` and `beta2` stand for one of `betas`, `lr_factor` for a rate in units of the matrices'.

    Args:
        known: setting -> its value for other kinds; None: any setting is accepted.
    Raises:
        UserError: no such kind or setting, or no settings of kinds at all.
    """
    if isinstance(given, str):
        try:
            given = _kinds_of_text(given)
        except ValueError as error:
            raise UserError(f"{owner}: by_kind is {given!r}; it must be {WANTED['kinds']}") from error
    if not isinstance(given, (Mapping, type(None))):
        raise UserError(f"{owner}: by_kind is a {type(given).__name__}; it must map kinds to settings")
    kinds: dict[str, dict[str, Any]] = {}
    for kind, own in (given or {}).items():
        if kind not in KINDS:
            hint = nearest(str(kind), KINDS)
            raise UserError(f"{owner}: by_kind has the kind '{kind}'{hint}; known: {', '.join(KINDS)}")
        if not isinstance(own, Mapping) or {"lr", "lr_factor"} <= set(own):
            raise UserError(
                f"{owner}: by_kind of {kind} is {own!r}; it must map settings to values, with lr or lr_factor"
            )
        kinds[kind] = dict(own)
        if known is None:
            continue
        if "betas" in known:
            parts = [kinds[kind].pop(name, None) for name in ("beta1", "beta2")]
            betas = kinds[kind].get("betas", known["betas"])
            if parts != [None, None]:
                kinds[kind]["betas"] = tuple(a if b is None else b for a, b in zip(betas, parts, strict=True))
        for name in kinds[kind]:
            if name not in known and name != "lr_factor":
                others = those_with(name)
                hint = f" ({others} have it)" if others else nearest(name, [*known, "lr_factor"])
                may = ", ".join([*known, "lr_factor", *(["beta1", "beta2"] if "betas" in known else [])])
                raise UserError(f"{owner}: by_kind of {kind} sets '{name}'{hint}; it may set {may}")
    return kinds


def _kinds_of_text(text: str) -> dict[str, dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for part in _word(text, None).strip("() ").split():
        kind, _, settings = part.partition(":")
        for name, _, value in (pair.partition("=") for pair in settings.split(",")):
            first, *more = (_WORDS[each] if each in ("true", "false") else float(each) for each in value.split("/"))
            kinds.setdefault(kind, {})[name] = (first, *more) if more else first
    return kinds


_READERS = {
    "kinds": lambda value, _: read_kinds("", value if isinstance(value, Mapping) else _kinds_of_text(value)),
    "switch": _switch,
    "number": _number,
    "integer": _integer,
    "word": _word,
    "numbers": _numbers,
}
