"""Settings of the chosen optimizer as flags of verbs that train: `danalab train --opt lion --betas 0.95,0.98`.

Which they are depends on --opt; so they are taken out of the arguments before the fixed flags are parsed. The
optimizers are imported only when a flag is not one of the fixed ones, or for help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError, nearest

if TYPE_CHECKING:
    from danalab.optim.registry.spec import OptimizerSpec

FIELD = "optimizer_settings"
"""The field of a data class that takes them; a class that has it also has `opt`."""


def chosen(arguments: list[str], file: Mapping[str, Any], default: str) -> str:
    """The optimizer that flags, a file or the default name."""
    name = str(file.get("opt") or default)
    for position, argument in enumerate(arguments):
        if argument == "--opt" and position + 1 < len(arguments):
            name = arguments[position + 1]
        elif argument.startswith("--opt="):
            name = argument.partition("=")[2]
    return name


def take(arguments: list[str], names: Iterable[str], opt: str, prog: str) -> tuple[list[str], dict[str, Any]]:
    """(arguments of fixed flags, settings of the optimizer `opt`).

    Args:
        names: fields of the fixed flags.
    Raises:
        UserError: a flag that is neither, with the nearest spelling; or a bad value.
    """
    fixed = {"help", *(name.rstrip("_") for name in names), *(f"no_{name}" for name in names)}
    rest: list[str] = []
    given: dict[str, Any] = {}
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        flag, equals, value = argument.partition("=")
        field = flag[2:].replace("-", "_") if flag.startswith("--") else None
        position += 1
        if field is None or field in fixed:
            rest.append(argument)
            continue
        spec = _spec(opt)
        name, is_switch, negated = _setting(spec, field, flag, fixed, prog)
        values = [value] if equals else []
        while not equals and position < len(arguments) and not arguments[position].startswith("--"):
            if is_switch and (values or negated):
                break
            values.append(arguments[position])
            position += 1
            if not _takes_many(spec, name):
                break
        if is_switch and not values:
            values = [str(not negated)]
        if not values:
            raise UserError(f"{flag} needs a value; see {prog} --opt {spec.name} --help")
        given[name] = _read(spec, name, flag, ",".join(values))
    return rest, given


def from_file(values: dict[str, Any], names: Iterable[str], opt: str, where: str) -> dict[str, Any]:
    """Take the optimizer's settings out of a file's `values`: keys beside the others, or within `optimizer_settings`.

    Raises:
        UserError: a key that is neither a flag nor a setting.
    """
    from danalab.optim.core.parse_settings import read_settings

    known = set(names)
    given = values.pop(FIELD, None)
    if not isinstance(given, (Mapping, type(None))):
        raise UserError(f"{where}: {FIELD}: settings by their names are expected, not {given!r}")
    given = dict(given or {})
    for key in [key for key in values if key not in known]:
        spec = _spec(opt)
        if key not in spec.settings:
            hint = nearest(key, [*known, *spec.settings])
            raise UserError(f"{where}: unknown key '{key}'{hint}")
        given[key] = values.pop(key)
    return read_settings(_spec(opt), given) if given else {}


def help_text(opt: str | None, names: Iterable[str], prog: str) -> str:
    """What to add to the help of the fixed flags."""
    if opt is None:
        return f"\nSettings of the chosen optimizer are flags, too: {prog} --opt NAME --help lists them."
    from danalab.optim.core.parse_settings import kind_of, written

    spec, fixed = _spec(opt), set(names)
    lines = [f"\nSettings of {spec.name} ({spec.summary}):"]
    for name, setting in spec.settings.items():
        if name not in fixed and name not in RESERVED:
            flag = f"--{name.replace('_', '-')} {kind_of(setting).upper()}"
            lines.append(f"  {flag:<34} {setting.help} (default: {written(setting.default)})")
    if "betas" in spec.settings:
        lines.append("  --beta1, --beta2                   set the first and second of --betas alone")
    if spec.advice:
        lines.append(f"  Note: {spec.advice}.")
    return "\n".join(lines)


RESERVED = {"horizon": "the run's length is --iterations"}
"""Settings of optimizers that a run decides by itself."""


def _spec(opt: str) -> OptimizerSpec:
    from danalab.optim import optimizer_spec

    return optimizer_spec(opt)


def _setting(spec: OptimizerSpec, field: str, flag: str, fixed: set[str], prog: str) -> tuple[str, bool, bool]:
    """(name, whether it is a switch, whether the flag says no)."""
    from danalab.optim.core.parse_settings import kind_of

    negated = field.startswith("no_") and field not in spec.settings
    name = field[3:] if negated else field
    if name in RESERVED and name in spec.settings:
        raise UserError(f"{flag}: {RESERVED[name]}")
    is_switch = name in spec.settings and kind_of(spec.settings[name]) == "switch"
    if name not in spec.settings or (negated and not is_switch):
        spelled = [known.replace("_", "-") for known in (*fixed, *spec.settings) if not known.startswith("no_")]
        hint = nearest(field.replace("_", "-"), spelled).replace("'", "").replace("mean ", "mean --")
        raise UserError(f"unknown flag {flag} for --opt {spec.name}{hint}; see {prog} --opt {spec.name} --help")
    return name, is_switch, negated


def _takes_many(spec: OptimizerSpec, name: str) -> bool:
    from danalab.optim.core.parse_settings import kind_of

    return kind_of(spec.settings[name]) == "numbers"


def _read(spec: OptimizerSpec, name: str, flag: str, text: str) -> Any:
    from danalab.optim.core.parse_settings import read_value

    return read_value(flag, spec.settings[name], text)
