"""Settings of an optimizer parsed from flags and files: checked names, typed values."""

import re
from collections.abc import Mapping
from typing import Any

from danalab.errors import UserError, nearest
from danalab.optim.registry.spec import OptimizerSpec, Setting, current_names

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
        raise UserError(f"{where} is {value}, must be {WANTED[kind]}")
    try:
        return _READERS[kind](value, setting)
    except (TypeError, ValueError) as error:
        wanted = WANTED[kind]
        if kind == "numbers" and setting.default is not None:
            wanted = f"{len(setting.default)} numbers, as in {written(setting.default)}"
        raise UserError(f"{where} is {value!r}, must be {wanted}") from error


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
