"""A data class becomes flags: tyro does the parsing; here are the YAML file, booleans with values, and one-line errors.

Order of precedence: defaults < `--config FILE.yaml` < flags. Underscores and hyphens are the same in flag names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import types
import typing
from collections.abc import Container
from pathlib import Path
from typing import Any

from danalab.cli._shared import optimizer_flags
from danalab.errors import UserError, nearest

_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}
_OTHER_WORDS = {
    "--model-dim": "--d-model",
    "--num-layers": "--n-layers",
    "--data-path": "--data",
    "--output-dir": "--run-dir",
    "--max-seq-len": "--seq-len",
    "--gradient-accumulation": "--acc-steps",
    "--no-amp": "--dtype=float32",
    # As the original training code has them (docs/parity.md).
    "--model": "--arch",
    "--n-embd": "--d-model",
    "--n-layer": "--n-layers",
    "--n-head": "--n-heads",
    "--mlp-hidden-dim": "--mlp-dim",
    "--sequence-length": "--seq-len",
    "--dataset": "--data",
    "--init-scheme": "--init",
    "--gamma-3-factor": "--gamma3",
    "--wd-ts-const": "--wd-ts",
    "--wsd-final-lr-scale": "--final-lr-scale",
    "--wsd-fract-decay": "--fract-decay",
    "--z-loss-coeff": "--z-loss",
    "--latest-ckpt-interval": "--ckpt-interval",
    "--permanent-ckpt-interval": "--keep-every",
}
"""What others call our flags, where a verb has them."""


@dataclasses.dataclass(frozen=True)
class Parsed:
    """What the command line said."""

    flags: Any
    print_config: bool

    def as_yaml(self, resolved: dict[str, Any] | None = None) -> str:
        """The configuration as YAML that `--config` takes back; `resolved` replaces what was left automatic."""
        import yaml

        values = dataclasses.asdict(self.flags)
        values.update({k: v for k, v in (resolved or {}).items() if k in values})
        plain = {
            k: str(v) if isinstance(v, Path) else list(v) if isinstance(v, tuple) else v for k, v in values.items()
        }
        return yaml.safe_dump(plain, sort_keys=False)


def parse(flags_type: type, arguments: list[str], *, prog: str, description: str) -> Parsed:
    """Parse `arguments` into an instance of the data class `flags_type`.

    Raises:
        UserError: unknown flag (with the nearest spelling), bad value, unknown key in the YAML file.
        SystemExit: with code 0 after `--help`.
    """
    import tyro

    hints = typing.get_type_hints(flags_type, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(flags_type) if f.init}
    arguments, config_file = _take_value(_in_our_words(arguments, fields), "--config")
    print_config = "--print-config" in arguments
    arguments = [a for a in arguments if a != "--print-config"]
    names = [name for name in fields if name != optimizer_flags.FIELD]
    loaded = {} if config_file is None else _yaml_values(config_file)
    settings: dict[str, Any] = {}
    opt = ""
    if optimizer_flags.FIELD in fields:
        opt = optimizer_flags.chosen(arguments, loaded, str(fields["opt"].default))
        settings = optimizer_flags.from_file(loaded, names, opt, f"--config {config_file}")
        arguments, given = optimizer_flags.take(arguments, names, opt, prog)
        settings |= given
    arguments = _plain_booleans(arguments, {name: hints[name] for name in names})
    positional = {n for n in names if "Positional" in str(hints[n])}
    _refuse_unknown(arguments, [n for n in names if n not in positional], prog)

    default = None if config_file is None else _from_yaml(flags_type, names, loaded, config_file)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            flags = tyro.cli(
                flags_type,
                args=arguments,
                prog=prog,
                description=description + "  Also: --config FILE.yaml, --print-config, --debug.",
                **({"default": default} if default is not None else {}),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            if opt:
                named = any(argument.split("=")[0] == "--opt" for argument in arguments)
                print(optimizer_flags.help_text(opt if named else None, names, prog))
            raise
        raise UserError(f"{_one_line(complaint.getvalue())}; see {prog} --help") from None
    if settings:
        flags = dataclasses.replace(flags, **{optimizer_flags.FIELD: settings})
    return Parsed(flags, print_config)


def _in_our_words(arguments: list[str], fields: Container[str | None]) -> list[str]:
    """Others' names as ours, unless the verb lacks the flag: then it is refused as it was typed."""
    parted = [argument.partition("=") for argument in arguments]
    words = [(_OTHER_WORDS.get(name.replace("_", "-"), name), name, equals + value) for name, equals, value in parted]
    return [(ours if _field(ours.partition("=")[0]) in fields else name) + rest for ours, name, rest in words]


def _take_value(arguments: list[str], flag: str) -> tuple[list[str], str | None]:
    """Remove `flag VALUE` or `flag=VALUE`; returns the rest and the value."""
    rest: list[str] = []
    value = None
    pending = iter(arguments)
    for argument in pending:
        if argument == flag:
            value = next(pending, None)
            if value is None:
                raise UserError(f"{flag} needs a value")
        elif argument.startswith(flag + "="):
            value = argument.split("=", 1)[1]
        else:
            rest.append(argument)
    return rest, value


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union; a plain type is a union of one."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _plain_booleans(arguments: list[str], hints: dict[str, Any]) -> list[str]:
    """`--flag False` and `--flag=false` mean `--no-flag`: the word after a boolean is never silently true."""
    result: list[str] = []
    position = 0
    while position < len(arguments):
        name, equals, value = arguments[position].partition("=")
        position += 1
        field = _field(name)
        negated = field is not None and field.startswith("no_") and field not in hints
        field = field[3:] if field and negated else field
        if field is None or bool not in _options(hints.get(field)):
            result.append(arguments[position - 1])
            continue
        if not equals and position < len(arguments) and arguments[position].lower() in _TRUE | _FALSE:
            value = arguments[position]
            position += 1
        if value and value.lower() not in _TRUE | _FALSE:
            raise UserError(f"{name} {value}: true or false is expected")
        truth = (value.lower() not in _FALSE) != negated
        flag = field.replace("_", "-")
        if type(None) in _options(hints[field]):  # tyro wants a value where None is a third state
            result += [f"--{flag}", str(truth)]
        else:
            result.append(f"--{flag}" if truth else f"--no-{flag}")
    return result


def _field(flag: str) -> str | None:
    return flag[2:].replace("-", "_") if flag.startswith("--") else None


def _refuse_unknown(arguments: list[str], names: list[str], prog: str) -> None:
    # a field called `from_` (a keyword of Python) is the flag --from
    known = {"help", *(name.rstrip("_") for name in names), *(f"no_{name}" for name in names)}
    for argument in arguments:
        field = _field(argument.split("=")[0])
        if field is not None and field not in known:
            spelled = [name.rstrip("_").replace("_", "-") for name in names]
            flag = argument.split("=")[0]
            hint = nearest(field.replace("_", "-"), spelled).replace("'", "").replace("mean ", "mean --")
            raise UserError(f"unknown flag {flag}{hint}; see {prog} --help")


def _yaml_values(file: str) -> dict[str, Any]:
    """What the file says, by field name."""
    import yaml

    try:
        text = Path(file).read_text(encoding="utf-8")
        node, loaded = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"--config {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--config {file}: not a text file in UTF-8") from error
    except (yaml.YAMLError, ValueError) as error:  # a value such as 2026-13-45 is no date, and so a ValueError
        raise UserError(f"--config {file}: not valid YAML: {error}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UserError(f"--config {file}: a mapping of flags is expected, not {type(loaded).__name__}")
    keys = [str(key.value).replace("-", "_") for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:  # of which YAML would keep the last
            raise UserError(f"--config {file}: {key} is given {keys.count(key)} times; leave one")
    return {str(key).replace("-", "_"): value for key, value in loaded.items()}


def _from_yaml(flags_type: type, names: list[str], values: dict[str, Any], file: str) -> Any:
    """An instance with the file's values; what the file leaves out keeps its default."""
    import tyro

    for key in values:
        if key not in names:
            raise UserError(f"--config {file}: unknown key '{key}'{nearest(key, names)}")
    hints = typing.get_type_hints(flags_type)
    for key, value in values.items():
        values[key] = _coerced(value, hints[key], f"--config {file}: {key}")
    for field in dataclasses.fields(flags_type):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and required and field.name not in values:
            values[field.name] = tyro.MISSING
    return flags_type(**values)


def _coerced(value: Any, hint: Any, where: str) -> Any:
    """A YAML value as the field's type; YAML reads 1e-3 as text and 1 as an integer."""
    options = _options(hint)
    if value is None and type(None) in options:
        return None
    for kind in options:
        origin = typing.get_origin(kind) or kind
        if origin is typing.Literal:
            if value not in typing.get_args(kind):
                raise UserError(f"{where}: {value!r} is not one of {', '.join(map(str, typing.get_args(kind)))}")
            return value
        if origin is tuple and isinstance(value, list):
            return tuple(_item(item, typing.get_args(kind)[0], where) for item in value)
        if not isinstance(origin, type) or origin is type(None):
            continue
        if isinstance(value, origin) and not (isinstance(value, bool) and origin is not bool):
            return value
        if origin is float and isinstance(value, (int, str)) and not isinstance(value, bool):
            with contextlib.suppress(ValueError):
                return float(value)
        if origin is Path and isinstance(value, str):
            return Path(value)
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in options if kind is not type(None))
    raise UserError(f"{where}: {value!r} is not of type {names}")


def _item(value: Any, kind: Any, where: str) -> Any:
    """An entry of a list; words may look like numbers, as steps do."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if kind is str and is_number else _coerced(value, kind, where)


def _one_line(box: str) -> str:
    """tyro frames its complaint; take the first paragraph's words out of the frame."""
    words: list[str] = []
    titled = "╭" not in box  # where there is only ASCII, the title stands in the text, above a rule
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines():
        text = line.strip("│|╭╮╰╯ ")
        if line.startswith(("╭", "╰", "┌", "└")):
            continue
        if words and set(text) <= {"─", "-", " "}:
            if not titled:
                break
            words, titled = [], False
            continue
        words.append(text)
    return " ".join(" ".join(words).split()).rstrip(".")
