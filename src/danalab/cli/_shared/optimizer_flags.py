"""Settings of the chosen optimizer as flags of verbs that train: `danalab train --opt lion --betas 0.95,0.98`.

They depend on --opt. The optimizers are imported only for a flag that is not one of the verb's own, or for help.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from danalab.cli._shared.options import Option
from danalab.errors import UserError, nearest
from danalab.train.config.experiment import SHARED_SETTINGS, OptimizerSettings
from danalab.train.config.fields import flag
from danalab.train.config.run_spec import RESERVED

if TYPE_CHECKING:
    from danalab.optim.registry import OptimizerSpec

FIELD = "optimizer_settings"
"""The field of a data class that holds them; a class that has it also has `opt`."""


def shared_options() -> list[Option]:
    """The flags of settings that are there whatever the optimizer."""
    aliases = {"gamma3": ("gamma-3-factor",)}
    section = {"section": OptimizerSettings.title, "heading": OptimizerSettings.title, "shown": False}
    return [
        Option(name=name, metavar="NUMBER", help=text, aliases=aliases.get(name, ()), **section)
        for name, text in SHARED_SETTINGS.items()
    ]


def options(opt: str, names: Iterable[str]) -> list[Option]:
    """The flags of the optimizer `opt`, without those that the verb has (`names`)."""
    from danalab.optim.values import kind_of, written

    spec, taken = _spec(opt), set(names)
    title = f"settings of {spec.name}: {spec.summary}"
    return [
        Option(
            name=name,
            help="" if name in RESERVED else f"{setting.help} (default: {written(setting.default)})",
            metavar=kind_of(setting).upper(),
            section=title,
            heading=title,
            is_switch=kind_of(setting) == "switch",
            many=kind_of(setting) in ("numbers", "kinds"),
            aliases=("group",) if name == "by_kind" else (),
        )
        for name, setting in spec.settings.items()
        if name not in taken
    ]


def take(values: Mapping[str, Any], opt: str) -> dict[str, Any]:
    """The optimizer's settings among parsed values."""
    from danalab.optim.values import kind_of, read_value

    found = {name: value for name, value in values.items() if name in SHARED_SETTINGS}
    for name, setting in _spec(opt).settings.items() if values.keys() - found.keys() else ():
        if name in values and name in RESERVED:
            raise UserError(f"{flag(name)}: {RESERVED[name]}")
        if name in values:
            text, separator = values[name], " " if kind_of(setting) == "kinds" else ","
            found[name] = read_value(flag(name), setting, text if isinstance(text, str) else separator.join(text))
    return found


def from_file(values: dict[str, Any], names: Iterable[str], opt: str, where: str) -> dict[str, Any]:
    """Take the optimizer's settings out of a file's `values`: keys beside the others, or in `optimizer_settings`."""
    known = set(names)
    given = values.pop(FIELD, None)
    if not isinstance(given, (Mapping, type(None))):
        raise UserError(f"{where}: {FIELD}: a mapping of settings is expected, not {given!r}")
    given = dict(given or {})
    shared = {key: values.pop(key) for key in list(values) if key in SHARED_SETTINGS}
    shared |= {key: given.pop(key) for key in list(given) if key in SHARED_SETTINGS}
    for key in [key for key in values if key not in known]:
        from danalab.optim.values import RENAMED

        spec = _spec(opt)
        if key not in spec.settings and key not in RENAMED:
            raise UserError(f"{where}: unknown key '{key}'{nearest(key, [*known, *spec.settings])}")
        given[key] = values.pop(key)
    if not given:
        return shared
    from danalab.optim.registry import read_settings

    return read_settings(_spec(opt), given) | shared


def help_note(opt: str | None, prog: str) -> str:
    """A sentence for the end of the help: the advice about `opt`, or how to list the settings of an optimizer."""
    if opt is None:
        return f"The settings of the optimizer are flags, too: {prog} --opt NAME --help lists them."
    spec = _spec(opt)
    betas = "--beta1 and --beta2 set the first and second of --betas alone." if "betas" in spec.settings else ""
    return " ".join(filter(None, [betas, f"Note: {spec.advice}." if spec.advice else ""]))


def _spec(opt: str) -> "OptimizerSpec":
    from danalab.optim import optimizer_spec

    return optimizer_spec(opt)
