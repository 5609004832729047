"""The command line as an instance of a data class: argparse parses, pydantic converts.

Order of precedence: defaults < `--config FILE.yaml` < flags. Underscores and hyphens are the same in flag names. The
settings of the optimizer that --opt names are flags, too. `--plugin` loads files before other flags are read.
"""

import argparse
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from danalab import plugins
from danalab.cli._shared.options import Option, docstrings, help_text, options_of
from danalab.errors import UserError, nearest
from danalab.files import expand_home, read_yaml, require_unique, to_yaml
from danalab.train.config.experiment import RESERVED, SHARED_SETTINGS, OptimizerSettings
from danalab.train.config.fields import field_types, flag, plain, validated

if TYPE_CHECKING:
    from danalab.optim.build import Setting

_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}
_NEGATIVE = re.compile(r"-\.?\d[\d.eE+-]*")


@dataclasses.dataclass(frozen=True)
class Parsed:
    """The result of parsing a command line."""

    flags: Any
    print_config: bool

    def as_yaml(self, resolved: dict[str, Any] | None = None) -> str:
        """The configuration as YAML that `--config` reads; `resolved` replaces automatic values."""
        values = {field.name: getattr(self.flags, field.name) for field in dataclasses.fields(self.flags)}
        known = {*values, *(SHARED_SETTINGS if FIELD in values else ())}
        values |= {key: value for key, value in (resolved or {}).items() if key in known}
        if plugins.in_use():
            values["plugin"] = plugins.in_use()
        return to_yaml(plain(values))


def parse(flags_type: type, arguments: list[str], *, prog: str, description: str) -> Parsed:
    """Parse `arguments` into a `flags_type`. UserError: a bad value, unknown flags (with the nearest) or YAML keys."""
    translate = getattr(flags_type, "translate_words", list)
    arguments = translate(arguments)
    options = options_of(flags_type, leave_out=FIELD)
    takes_optimizer = FIELD in field_types(flags_type)
    names = [option.name for option in options]
    options += shared_options() if takes_optimizer else []
    given, extra = _parse_words(options, arguments, prog)
    asks_help = given.keys() & {"help", "help_all"}
    where = f"--config {given.get('config')}"
    from_file = _read_file(expand_home(given["config"])) if "config" in given and not asks_help else {}
    listed = from_file.pop("plugin", [])
    files = [*([listed] if isinstance(listed, str) else listed), *given.pop("plugin", [])]
    plugins.use(expand_home(str(file)) for file in files)
    settings: dict[str, Any] = {}
    notes, opt = [], ""
    if takes_optimizer:
        opt = str(given.get("opt") or from_file.get("opt") or getattr(flags_type, "opt", ""))
        settings = settings_in_file(from_file, names, opt, where)
        if (opt and any(word.startswith("--") for word in extra)) or (asks_help and "opt" in given):
            options += options_of_optimizer(opt, [option.name for option in options])
            given, extra = _parse_words(options, arguments, prog)  # again: which flags there are depends on --opt
        own = {option.name for option in options} - set(names)
        settings |= take_settings({key: value for key, value in given.items() if key in own}, opt)
        notes.append(help_note(opt if "opt" in given else None, prog))
    if asks_help:
        helps = docstrings(flags_type)
        options = [dataclasses.replace(option, help=option.help or helps.get(option.name, "")) for option in options]
        print(help_text(options, prog, description, everything="help_all" in given, notes=notes))
        raise SystemExit(0)
    more = "; docs/parity.md lists the flags of the original code" if translate is not list else ""
    _refuse_unknown(extra, options, f"{prog} --opt {opt}" if opt else prog, more)
    for key in from_file:
        if key not in names:
            raise UserError(f"{where}: unknown key '{key}'{nearest(key, names)}")
    values = validated(flags_type, from_file, where)
    values |= validated(flags_type, {name: given[name] for name in names if name in given})
    for field in dataclasses.fields(flags_type):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and required and field.name not in values:
            positional = any(option.positional for option in options if option.name == field.name)
            what = field.name.upper() if positional else flag(field.name)
            raise UserError(f"{what} is needed; see {prog} --help")
    if settings:
        values[FIELD] = settings
    return Parsed(flags_type(**values), "print_config" in given)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+): expected .*", r"\1 needs a value", message.replace("/--help", ""))
        raise UserError(f"{message}; see {self.prog.split(' [')[0]} --help")


def _parse_words(options: list[Option], words: list[str], prog: str) -> tuple[dict[str, Any], list[str]]:
    """(values by field name, as text; words that no option takes)."""
    parser = _Parser(prog=prog, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name in ("--help", "--help-all", "--print-config"):
        parser.add_argument(name, dest=name.strip("-").replace("-", "_"), action="store_true")
    parser.add_argument("--config")
    parser.add_argument("--plugin", action="append")
    for option in options:
        if option.positional:
            parser.add_argument(option.name, nargs="*" if option.many else "?")
        elif option.many:
            parser.add_argument(flag(option.name), dest=option.name, nargs="*", action="extend")
        else:
            parser.add_argument(flag(option.name), dest=option.name)
    found, extra = parser.parse_known_intermixed_args(_normalised(options, words))
    return {name: value for name, value in vars(found).items() if value is not None}, extra


def _normalised(options: list[Option], words: list[str]) -> list[str]:
    """Words in one spelling: hyphens, our names for others' flags, switches and negative numbers as --flag=value."""
    by_flag = {flag(option.name): option for option in options if not option.positional}
    aliases = {
        f"--{name}": flag(option.name) + equals + value
        for option in options
        for name, equals, value in (alias.partition("=") for alias in option.aliases)
    }
    result: list[str] = []
    pending = list(reversed(words))
    while pending:
        word = pending.pop()
        typed, equals, value = word.partition("=")
        spelled = typed.replace("_", "-")
        spelled = aliases.get(spelled, spelled)
        negated = spelled.startswith("--no-") and spelled not in by_flag
        if negated:
            spelled = aliases.get(f"--{spelled[5:]}", f"--{spelled[5:]}")
        option = by_flag.get(spelled)
        if typed.startswith("--") and "=" in spelled:
            result.append(spelled)
        elif option is None or (negated and not option.is_switch):
            result.append(word)  # a value, or refused later as it was typed
        elif option.is_switch:
            if not equals:
                value = pending.pop() if pending and pending[-1].lower() in _TRUE | _FALSE else "true"
            if value.lower() not in _TRUE | _FALSE:
                raise UserError(f"{typed} {value!r}: true or false is expected")
            result.append(f"{spelled}={str((value.lower() in _TRUE) != negated).lower()}")
        elif not equals and not option.many and pending and _NEGATIVE.fullmatch(pending[-1]):
            result.append(f"{spelled}={pending.pop()}")  # argparse would take -1e-3 for a flag
        else:
            result.append(spelled + equals + value)
    return result


def _read_file(file: str) -> dict[str, Any]:
    try:
        loaded = read_yaml(file)
    except UserError as error:
        raise UserError(f"--config {error}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UserError(f"--config {file}: a mapping of names to values is expected, not {type(loaded).__name__}")
    names = [str(key).replace("-", "_") for key in loaded]
    try:
        require_unique(names)
    except ValueError as error:
        raise UserError(f"--config {file}: {error}") from error
    return dict(zip(names, loaded.values(), strict=True))


def _refuse_unknown(extra: Sequence[str], options: list[Option], prog: str, more: str) -> None:
    """Name all unknown flags at once, each with the nearest spelling."""
    unknown = list(dict.fromkeys(word.partition("=")[0] for word in extra if word.startswith("--")))
    known = [flag(option.name).lstrip("-") for option in options if not option.positional]
    if unknown:  # compared without the dashes, which all flags share
        hints = [nearest(word.lstrip("-").replace("_", "-"), known).replace("'", "--", 1) for word in unknown]
        named = ", ".join(word + hint.replace("'", "") for word, hint in zip(unknown, hints, strict=True))
        raise UserError(f"unknown flag{'s' * (len(unknown) > 1)} {named}; see {prog} --help-all{more}")
    if extra:
        raise UserError(f"unexpected argument '{extra[0]}'; see {prog} --help")


# ---- the settings of the chosen optimizer: `danalab train --opt lion --betas 0.95,0.98` ----
#
# They depend on --opt. The optimizers are imported only for a flag that is not one of the verb's own, or for help.


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


def options_of_optimizer(opt: str, names: Iterable[str]) -> list[Option]:
    """The flags of the optimizer `opt`, without those that the verb has (`names`)."""
    from danalab.cli.optim import summary_of, written

    settings, taken = _settings(opt), set(names)
    title = f"settings of {opt}: {summary_of(opt)}"
    return [
        Option(
            name=name,
            help="" if name in RESERVED else f"{setting.help} (default: {written(setting.default)})",
            metavar="VALUE",
            section=title,
            heading=title,
            is_switch=isinstance(setting.default, bool),
            many=isinstance(setting.default, tuple),
        )
        for name, setting in settings.items()
        if name not in taken
    ]


def take_settings(values: Mapping[str, Any], opt: str) -> dict[str, Any]:
    """The optimizer's settings among parsed values."""
    from danalab.optim.build import read_value

    found = {name: value for name, value in values.items() if name in SHARED_SETTINGS}
    for name in _settings(opt) if values.keys() - found.keys() else ():
        if name in values and name in RESERVED:
            raise UserError(f"{flag(name)}: {RESERVED[name]}")
        if name in values:
            text = values[name]
            text = text if isinstance(text, (str, bool)) else ",".join(text)
            found[name] = read_value(text) if isinstance(text, str) else text
    return found


def settings_in_file(values: dict[str, Any], names: Iterable[str], opt: str, where: str) -> dict[str, Any]:
    """Take the optimizer's settings out of a file's `values`: keys beside the others, or in `optimizer_settings`."""
    known = set(names)
    given = values.pop(FIELD, None)
    if not isinstance(given, (Mapping, type(None))):
        raise UserError(f"{where}: {FIELD}: a mapping of settings is expected, not {given!r}")
    given = dict(given or {})
    shared = {key: values.pop(key) for key in list(values) if key in SHARED_SETTINGS}
    shared |= {key: given.pop(key) for key in list(given) if key in SHARED_SETTINGS}
    for key in [key for key in values if key not in known]:
        settings = _settings(opt)
        if key not in settings:
            raise UserError(f"{where}: unknown key '{key}'{nearest(key, [*known, *settings])}")
        given[key] = values.pop(key)
    if not given:
        return shared
    from danalab.optim.build import read_settings

    return read_settings(opt, given) | shared


def help_note(opt: str | None, prog: str) -> str:
    """A sentence for the end of the help: the advice about `opt`, or how to list the settings of an optimizer."""
    if opt is None:
        return f"The settings of the optimizer are flags, too: {prog} --opt NAME --help lists them."
    return "--beta1 and --beta2 set the first and second of --betas alone." if "betas" in _settings(opt) else ""


def _settings(opt: str) -> "dict[str, Setting]":
    from danalab.optim import settings_of

    return settings_of(opt)
