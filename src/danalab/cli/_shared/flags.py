"""The command line as an instance of a data class: argparse parses, pydantic converts.

Order of precedence: defaults < `--config FILE.yaml` < flags. Underscores and hyphens are the same in flag names. A
field that is a mapping takes NAME=VALUE words; for `optimizer_settings` the flag is --set.
"""

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from danalab.cli._shared.options import Option, docstrings, help_text, options_of
from danalab.cli._shared.original import translate
from danalab.errors import UserError, nearest
from danalab.files import expand_home, read_yaml, require_unique, to_yaml
from danalab.train.config.fields import flag, plain, validated

_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}
_NEGATIVE = re.compile(r"-\.?\d[\d.eE+-]*")


@dataclasses.dataclass(frozen=True)
class Parsed:
    """The result of parsing a command line."""

    flags: Any
    print_config: bool

    def as_yaml(self, resolved: Mapping[str, Any] | None = None) -> str:
        """The configuration as YAML that `--config` reads; `resolved` replaces automatic values."""
        shown = [field.name for field in dataclasses.fields(self.flags) if not field.metadata.get("hidden")]
        return to_yaml(plain({name: (resolved or {}).get(name, getattr(self.flags, name)) for name in shown}))


def parse(flags_type: type, arguments: list[str], *, prog: str, description: str) -> Parsed:
    """Parse `arguments` into a `flags_type`. UserError: a bad value, unknown flags (with the nearest) or YAML keys."""
    options = options_of(flags_type)
    trains = any(option.name == "opt" for option in options)
    given = _parse_words(options, translate(arguments) if trains else arguments, prog)
    if given.keys() & {"help", "help_all"}:
        helps = docstrings(flags_type)
        options = [
            dataclasses.replace(option, help=option.help or helps.get(option.name, "")) for option in options
        ]
        print(help_text(options, prog, description, everything="help_all" in given))
        raise SystemExit(0)
    where, names = f"--config {given.get('config')}", {option.name: option for option in options}
    from_file = _read_file(expand_home(given["config"])) if "config" in given else {}
    for key in from_file:
        if key not in names:
            raise UserError(f"{where}: unknown key '{key}'{nearest(key, names)}")
    from_words = {name: given[name] for name in names if name in given}
    for name, words in from_words.items():
        if names[name].is_mapping:
            from_words[name] = {**(from_file.get(name) or {}), **_assignments(names[name].flag, words)}
    values = validated(flags_type, from_file, where) | validated(flags_type, from_words)
    for field in dataclasses.fields(flags_type):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and required and field.name not in values:
            what = field.name.upper() if names[field.name].positional else flag(field.name)
            raise UserError(f"{what} is needed; see {prog} --help")
    return Parsed(flags_type(**values), "print_config" in given)


def _assignments(flag: str, words: Sequence[str]) -> dict[str, Any]:
    """["betas=0.9,0.95", "eps=1e-10"] -> {"betas": [0.9, 0.95], "eps": 1e-10}."""
    values = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"{flag} {word}: NAME=VALUE is expected")
        parts = [_value(part) for part in text.split(",")]
        values[name.replace("-", "_")] = parts if len(parts) > 1 else parts[0]
    return values


def _value(text: str) -> Any:
    """A number, true, false or none, or else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+): expected .*", r"\1 needs a value", message.replace("/--help", ""))
        raise UserError(f"{message}; see {self.prog.split(' [')[0]} --help")


def _parse_words(options: list[Option], words: list[str], prog: str) -> dict[str, Any]:
    """Values by field name, as text. UserError: words that no option takes."""
    parser = _Parser(prog=prog, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name in ("--help", "--help-all", "--print-config"):
        parser.add_argument(name, dest=name.strip("-").replace("-", "_"), action="store_true")
    parser.add_argument("--config")
    for option in options:
        if option.positional:
            parser.add_argument(option.name, nargs="*" if option.many else "?")
        elif option.many:
            parser.add_argument(option.flag, dest=option.name, nargs="*", action="extend")
        else:
            parser.add_argument(option.flag, dest=option.name)
    found, extra = parser.parse_known_intermixed_args(_normalised(options, words))
    given = {name: value for name, value in vars(found).items() if value is not None}
    if not given.keys() & {"help", "help_all"}:
        _refuse_unknown(extra, options, prog)
    return given


def _normalised(options: list[Option], words: list[str]) -> list[str]:
    """Words in one spelling: hyphens, our names for others' flags, switches and negative numbers as --flag=value."""
    by_flag = {option.flag: option for option in options if not option.positional}
    aliases = {
        f"--{name}": option.flag + equals + value
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
    loaded = {} if loaded is None else loaded
    if not isinstance(loaded, dict):
        raise UserError(
            f"--config {file}: a mapping of names to values is expected, not {type(loaded).__name__}"
        )
    names = [str(key).replace("-", "_") for key in loaded]
    try:
        require_unique(names)
    except ValueError as error:
        raise UserError(f"--config {file}: {error}") from error
    return dict(zip(names, loaded.values(), strict=True))


def _refuse_unknown(extra: Sequence[str], options: list[Option], prog: str) -> None:
    """Name all unknown flags at once, each with the nearest spelling."""
    unknown = list(dict.fromkeys(word.partition("=")[0] for word in extra if word.startswith("--")))
    known = [option.flag.lstrip("-") for option in options if not option.positional]
    if unknown:  # compared without the dashes, which all flags share
        hints = [nearest(word.lstrip("-").replace("_", "-"), known).replace("'", "--", 1) for word in unknown]
        named = ", ".join(word + hint.replace("'", "") for word, hint in zip(unknown, hints, strict=True))
        more = "; a setting of the optimizer is given by --set NAME=VALUE" if "set" in known else ""
        raise UserError(f"unknown flag{'s' * (len(unknown) > 1)} {named}; see {prog} --help-all{more}")
    if extra:
        raise UserError(f"unexpected argument '{extra[0]}'; see {prog} --help")
