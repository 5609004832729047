"""Settings as fields of data classes, which are flags: declared, checked by pydantic, parsed by argparse, explained.

Order of precedence: defaults < `--config FILE.yaml` < flags. Underscores and hyphens are the same in flag names. A
field that is a mapping takes NAME=VALUE words; for `optimizer_settings` the flag is --set.
"""

import argparse
import dataclasses
import inspect
import math
import re
import typing
from collections.abc import Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, TypeVar

from annotated_types import Ge, Gt, Lt

from danalab.errors import UserError, nearest
from danalab.files import expand_home, read_yaml, require_unique, to_yaml
from danalab.train.config import original

Kind = Literal["run", "input", "data", "execution", "job"]
"""What a changed value means for an existing run folder. run: it is another run, refused. input: nothing by itself; the
values that `resolve` computes from it are compared. data: nothing if the data have the same fingerprint. execution: the
same run, carried out or reported in another way. job: it concerns one job of the run."""

Count = Annotated[int, Ge(1), Lt(2**63)]
Natural = Annotated[int, Ge(0), Lt(2**63)]
Positive = Annotated[float, Gt(0), Lt(math.inf)]
NonNegative = Annotated[float, Ge(0), Lt(math.inf)]
Finite = Annotated[float, Gt(-math.inf), Lt(math.inf)]

PathText = Annotated[str, "path"]
"""A path, or a name or FILE.py:NAME; or several of these with commas."""

T = TypeVar("T")
Positional = Annotated[T, "positional"]
"""A field that is given without a flag: `path: Positional[Path]`."""
if TYPE_CHECKING:
    Auto = Annotated[T, "automatic"]
else:
    Auto = Annotated[T | None, "automatic"]
"""A setting that may be None as it is given: `danalab.train.config.resolve` fills it in."""

Dtype = Literal["float32", "bfloat16", "float16"]
SPELLINGS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Other spellings of the choices of a setting."""


def setting(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    factory: Any = dataclasses.MISSING,
    kind: Kind = "run",
    aliases: tuple[str, ...] = (),
    main: bool = False,
    hidden: bool = False,
    alone: str = "",
) -> Any:
    """A field of a section; `aliases`: other flags for it; `main`: --help shows it; `hidden`: it is no flag; `alone`:
    its value where the flag has none.
    """
    metadata = {
        "help": help,
        "kind": kind,
        "aliases": aliases,
        "main": main,
        "hidden": hidden,
        "alone": alone,
    }
    return dataclasses.field(default=default, default_factory=factory, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonFlags:
    """The flag of verbs whose result programs can read."""

    json: bool = setting(False, "Print one JSON object on standard output.", kind="job")


class Answer(NamedTuple):
    """What a verb with the flag --json found: `facts` for --json, `lines` for people, and the exit code."""

    facts: Any
    lines: Sequence[str]
    code: int = 0


def flag(name: str) -> str:
    """The spelling of a field on the command line."""
    return "--set" if name == "optimizer_settings" else "--" + name.rstrip("_").replace("_", "-")


def names_of(section: type, *kinds: Kind) -> frozenset[str]:
    """The fields of the given kinds; those that are no flags apart."""
    return frozenset(
        field.name
        for field in dataclasses.fields(section)
        if field.metadata.get("kind", "run") in kinds and not field.metadata.get("hidden")
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A group of settings that belong together; UserError: wrong type, out of range, or a contradiction in them."""

    title: ClassVar[str] = ""
    """Heading in the help."""

    def __post_init__(self) -> None:
        for name, value in validated(type(self), vars(self)).items():
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Refuse contradictions between settings; a section calls that of the next one."""

    def as_dict(self) -> dict[str, Any]:
        """All settings as plain values for JSON and YAML."""
        shown = (field for field in dataclasses.fields(self) if not field.metadata.get("hidden"))
        return {field.name: plain(getattr(self, field.name)) for field in shown}


def plain(value: Any) -> Any:
    """A value of a setting for JSON and YAML: paths are text, tuples are lists."""
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


# ---- validation ----


def validated(cls: type, values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """`values` of fields of a data class, converted to the fields' types. Errors name keys of `where`, else flags."""
    hints = field_types(cls)
    prepared = {name: _prepared(value, hints[name]) for name, value in values.items() if name in hints}
    from pydantic import ValidationError

    try:
        return _adapter(cls).validate_python(prepared)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        name, value = str(details["loc"][0]), details["input"]
        expected = str(details["msg"]).replace("Input should be", "must be").partition(", unable to parse")[0]
        expected = expected.replace("greater than or equal to", "at least").replace(
            "less than or equal to", "at most"
        )
        shown = f"{where}: {name}: {value!r:.100}" if where else f"{flag(name)} {value!s:.100}"
        raise UserError(f"{shown}: {expected}") from None


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Name -> annotation of the fields that are settings."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init and not f.metadata.get("hidden")}


@cache
def leaf_types(hint: Any) -> frozenset[Any]:
    """The plain types that an annotation allows, without `Annotated`, unions and containers; text for `Literal`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return frozenset({str})
    if origin is Annotated:
        return leaf_types(arguments[0])
    if origin in (None, dict):
        return frozenset({origin or hint})
    return frozenset().union(*(leaf_types(argument) for argument in arguments if argument is not ...))


@cache
def _adapter(cls: type) -> Any:
    from pydantic import ConfigDict, TypeAdapter, with_config
    from typing_extensions import TypedDict

    schema = TypedDict(cls.__name__, field_types(cls), total=False)  # pyright: ignore[reportArgumentType]
    return TypeAdapter(with_config(ConfigDict(coerce_numbers_to_str=True))(schema))


def _prepared(value: Any, hint: Any) -> Any:
    """A value before pydantic converts it: "none", 1e3 for a whole number, ~ in paths, short names of formats."""
    if isinstance(value, (list, tuple)):
        return [_prepared(item, hint) for item in value]
    types = leaf_types(hint)
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str):
        return value
    if value.lower() == "none" and type(None) in types and (str not in types or value == "None"):
        return None
    if SPELLINGS.get(value.lower(), value) in str(hint):
        value = SPELLINGS.get(value.lower(), value)
    value = expand_paths(value, hint)
    if int in types and re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d{1,2}", value):
        return float(value)
    return value


def expand_paths(value: str, hint: Any) -> str:
    """The text of a setting, with `danalab.files.expand_home` where the field's annotation `hint` has paths."""
    if Path in leaf_types(hint):
        return expand_home(value)
    return ",".join(map(expand_home, value.split(","))) if "'path'" in str(hint) else value


# ---- the options of a data class ----

_BOOLEANS = {"true", "1", "yes", "on", "false", "0", "no", "off"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One flag."""

    name: str
    """Name of the field."""
    flag: str
    metavar: str
    help: str
    section: str
    """Heading in `--help-all`."""
    is_switch: bool
    alone: str
    """Its value where none is given; empty: it needs one."""
    is_mapping: bool
    """Whether its values are NAME=VALUE."""
    many: bool
    """Whether it takes several values."""
    positional: bool
    shown: bool
    """Whether `--help` lists it; `--help-all` lists all."""
    aliases: tuple[str, ...]


def options_of(flags_type: type) -> list[Option]:
    """The flags of `flags_type` in the order of its help: arguments, its own flags, those of its bases, sections.

    `--help` lists those of its attribute `main`, else those of no section and those of sections that are marked so.
    """
    options, main = [], getattr(flags_type, "main", ())
    classes = [base for base in flags_type.__mro__ if dataclasses.is_dataclass(base)]
    for field in dataclasses.fields(flags_type):
        if not field.init or field.metadata.get("hidden"):
            continue
        hint = field_types(flags_type)[field.name]
        types = leaf_types(hint)
        declared = [base for base in classes if field.name in inspect.get_annotations(base)]
        section = "" if declared[0] is flags_type else getattr(declared[0], "title", "")
        said = [base.__dataclass_fields__[field.name].metadata for base in declared]
        option = Option(
            name=field.name,
            flag=flag(field.name),
            metavar=_metavar(hint, types),
            help=_with_default(next((each["help"] for each in said if each.get("help")), ""), field.default),
            section=section,
            is_switch=types <= {bool, type(None)},
            alone=field.metadata.get("alone", ""),
            is_mapping=dict in types,
            many="tuple[" in str(hint) or dict in types,
            positional="positional" in getattr(hint, "__metadata__", ()),
            shown=field.name in main if main else field.metadata.get("main", False) or not section,
            aliases=tuple(flag(alias) for each in said for alias in each.get("aliases", ())),
        )
        place = (not option.positional, bool(section), 0 if section else classes.index(declared[0]))
        options.append((place, option))
    return [option for _, option in sorted(options, key=lambda pair: pair[0])]


def _metavar(hint: Any, types: frozenset[Any]) -> str:
    if dict in types:
        return "NAME=VALUE"
    if choices := re.search(r"Literal\[(.*?)\]", str(hint)):
        return "{" + choices[1].replace("'", "").replace(" ", "") + "}"
    words = ((int, "INT"), (float, "NUMBER"), (Path, "PATH"))
    return next((word for kind, word in words if kind in types), "TEXT")


def _with_default(text: str, default: Any) -> str:
    """Help, with the default where the help does not speak of it."""
    unsaid = default is None or default is False or default in ((), "", dataclasses.MISSING)
    if unsaid or "default" in text.lower():
        return text
    values = default if isinstance(default, tuple) else [default]
    shown = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return f"{text} (default: {'yes' if default is True else shown})"


# ---- words ----


def parse(flags_type: type[T], words: Sequence[str], prog: str) -> T:
    """The `flags_type` of the words. UserError: a bad value, unknown flags (with the nearest) or keys of YAML."""
    options = {option.name: option for option in options_of(flags_type)}
    given = _parsed(list(options.values()), words, prog)
    file = given.pop("config", None)
    where = f"--config {file}"
    from_file = {} if file is None else _read_file(expand_home(file))
    for key in from_file:
        if key not in options:
            raise UserError(f"{where}: unknown key '{key}'{nearest(key, options)}")
    for name in given:
        if options[name].is_mapping:
            given[name] = {**(from_file.get(name) or {}), **_assignments(options[name].flag, given[name])}
    values = validated(flags_type, from_file, where) | validated(flags_type, given)
    for field in dataclasses.fields(flags_type):  # pyright: ignore[reportArgumentType]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and required and field.name not in values:
            what = field.name.upper() if options[field.name].positional else flag(field.name)
            raise UserError(f"{what} is needed; see {prog} --help")
    return flags_type(**values)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ([^\s/]+)\S*: expected .*", r"\1 needs a value", message)
        raise UserError(f"{message}; see {self.prog} --help")


def _parsed(options: list[Option], words: Sequence[str], prog: str) -> dict[str, Any]:
    """Values by field name, as text; what follows `--` is for the argument. UserError: words that no option takes."""
    end = words.index("--") if "--" in words else len(words)
    theirs = original.FLAGS if any(option.name == "opt" for option in options) else set[str]()
    words, rest = _joined(options, words[:end], theirs), list(words[end + 1 :])
    parser = _Parser(prog=prog, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--config")
    for option in options:
        flags = (option.flag, *option.aliases)
        if option.positional:  # also takes its flag
            nargs, action = ("*", "extend") if option.many else ("?", "store")
            parser.add_argument(option.name, nargs=nargs, action=action)
        if option.many:
            parser.add_argument(*flags, dest=option.name, nargs="*", action="extend")
        elif option.alone:
            parser.add_argument(*flags, dest=option.name, nargs="?", const=option.alone)
        else:
            parser.add_argument(*flags, dest=option.name)
        if option.is_switch:
            negated = ["--no-" + spelling.lstrip("-") for spelling in flags]
            parser.add_argument(*negated, dest=option.name, action="store_const", const="false")
    for name in theirs:
        parser.add_argument(flag(name), nargs="?", const="")
    found, extra = parser.parse_known_intermixed_args(words)
    given = {name: value for name, value in vars(found).items() if value is not None}
    if theirs & given.keys():
        original.take_over(given)
    last = next((option.name for option in options if option.positional and option.many), None)
    if rest and last is not None:
        given[last] = [*given.get(last, []), *rest]
    elif rest:
        extra += ["--"]
    if extra:
        _refuse(extra, [spelling for option in options for spelling in (option.flag, *option.aliases)], prog)
    return given


def _joined(options: list[Option], words: Sequence[str], theirs: Set[str]) -> list[str]:
    """Words with hyphens in their flags, and values that argparse would not take in them: --json=true, --lr=-1."""
    taking = {spelling: option for option in options for spelling in (option.flag, *option.aliases)}
    result: list[str] = []
    for word in words:
        option = taking.get(result[-1]) if result else None
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            spelled = name.replace("_", "-")
            is_known = (
                spelled in taking
                or spelled.replace("--no-", "--", 1) in taking
                or name[2:].replace("-", "_") in theirs
            )
            result.append((spelled if is_known else name) + equals + value)
        elif option and (word.lower() in _BOOLEANS if option.is_switch else _is_negative(option, word)):
            result[-1] += f"={word}"
        else:
            result.append(word)
    return [f"{word}=true" if word in taking and taking[word].is_switch else word for word in result]


def _is_negative(option: Option, word: str) -> bool:
    return not option.many and re.fullmatch(r"-\.?\d[\d.eE+-]*", word) is not None


def _refuse(extra: Sequence[str], flags: list[str], prog: str) -> NoReturn:
    """Name all unknown flags at once, each with the nearest spelling."""
    unknown = list(dict.fromkeys(word.partition("=")[0] for word in extra if re.match("--.", word)))
    if not unknown:
        raise UserError(f"unexpected argument '{extra[0]}'; see {prog} --help")
    known = [flag.lstrip("-") for flag in flags]  # compared without the dashes, which all share
    hints = [nearest(word.lstrip("-").replace("_", "-"), known) for word in unknown]
    hints = [hint.replace("'", "--", 1).replace("'", "") for hint in hints]
    named = ", ".join(word + hint for word, hint in zip(unknown, hints, strict=True))
    more = "; a setting of the optimizer is given by --set NAME=VALUE" if "set" in known else ""
    raise UserError(f"unknown flag{'s' * (len(unknown) > 1)} {named}; see {prog} --help-all{more}")


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


# ---- files and help ----


def _read_file(file: str) -> dict[str, Any]:
    try:
        loaded = read_yaml(file)
        loaded = {} if loaded is None else loaded
        if not isinstance(loaded, dict):
            raise UserError(f"a mapping of names to values is expected, not {type(loaded).__name__}")
        names = [str(key).replace("-", "_") for key in loaded]
        require_unique(names)
    except ValueError as error:
        raise UserError(f"--config {file}: {str(error).removeprefix(f'{file}: ')}") from error
    return dict(zip(names, loaded.values(), strict=True))


def as_yaml(flags: Any, resolved: Mapping[str, Any]) -> str:
    """The configuration as YAML that `--config` reads; `resolved` replaces automatic values."""
    shown = [field.name for field in dataclasses.fields(flags) if not field.metadata.get("hidden")]
    return to_yaml(plain({name: resolved.get(name, getattr(flags, name)) for name in shown}))


def help_text(flags_type: type, prog: str, description: str, *, everything: bool) -> str:
    """The text that --help prints; with `everything`, --help-all."""
    options = options_of(flags_type)
    parser = argparse.ArgumentParser(
        prog=prog,
        add_help=False,
        description=description,
        usage=" ".join([prog, *(option.name.upper() for option in options if option.positional), "[flags]"]),
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
    )
    listed = [option for option in options if everything or option.shown]
    groups: dict[str, Any] = {}
    for option in listed:
        title = (everything and option.section) or "flags"
        group = groups.setdefault(title, None) or parser.add_argument_group(title)
        groups[title], text = group, option.help.replace("%", "%%")
        if option.positional:
            group.add_argument(option.name, metavar=option.name.upper(), help=text)
        elif not option.is_switch:
            group.add_argument(option.flag, metavar=option.metavar, help=text)
        else:
            both = [option.flag, *(["--no-" + option.flag[2:]] if "default" in text.lower() else [])]
            group.add_argument(*both, action="store_true", help=text)
    hidden = len(options) - len(listed)
    parser.epilog = f"{hidden} more flags: {prog} --help-all. " if hidden else ""
    parser.epilog += (
        "--config FILE.yaml reads flags from a file, --print-config prints them, --debug shows tracebacks."
    )
    return parser.format_help()
