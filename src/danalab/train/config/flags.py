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
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, TypeVar

from annotated_types import Ge, Gt, Lt

from danalab.errors import UserError, nearest
from danalab.files import expand_home, read_yaml, to_yaml
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
    paths = value and "'path'" in str(hint)  # an empty text may be a default: "the run's"
    return ",".join(map(expand_home, value.split(","))) if paths else value


# ---- the flags of a data class ----


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are UserErrors."""

    switches: frozenset[str] = frozenset()
    """Flags that take no value, or true or false as a word of its own."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ([^\s/]+)\S*: expected .*", r"\1 needs a value", message)
        raise UserError(f"{message}; see {self.prog} --help")


def _parser(flags_type: type, prog: str, description: str = "", *, everything: bool = False) -> _Parser:
    """The parser of `flags_type`; its help lists all flags by section, with `everything`, else the main ones.

    These are those of its attribute `main`, else those of no section and those of sections that are marked so.
    """
    parser = _Parser(
        prog,
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description=description,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
    )
    parser._negative_number_matcher = re.compile(r"-\.?\d")  # -1e-3 is a value
    parser.add_argument("--config", help=argparse.SUPPRESS)
    groups: dict[str, Any] = {}
    arguments, hidden, main = [], 0, getattr(flags_type, "main", ())
    classes = [base for base in flags_type.__mro__ if dataclasses.is_dataclass(base)]
    hints = field_types(flags_type)
    fields = [field for field in dataclasses.fields(flags_type) if field.name in hints]

    def place(field: dataclasses.Field[Any]) -> tuple[bool, int]:
        """Arguments, settings of the class, those of its bases; sections in the order of their fields."""
        owner = next(i for i, base in enumerate(classes) if field.name in inspect.get_annotations(base))
        in_section = owner and getattr(classes[owner], "title", "")
        return not is_positional(hints[field.name]), len(classes) if in_section else owner

    for field in sorted(fields, key=place):
        declared = [base for base in classes if field.name in inspect.get_annotations(base)]
        said = [base.__dataclass_fields__[field.name].metadata for base in declared]
        section = "" if declared[0] is flags_type else getattr(declared[0], "title", "")
        is_main = field.name in main if main else field.metadata.get("main", False) or not section
        title = section if everything and section else "flags"
        group = groups.get(title) or groups.setdefault(title, parser.add_argument_group(title))
        help = _with_default(next((each["help"] for each in said if each.get("help")), ""), field.default)
        help = help.replace("%", "%%") if everything or is_main else argparse.SUPPRESS
        hidden += help == argparse.SUPPRESS
        kind = _kind(field, hints[field.name])
        if is_positional(hints[field.name]):  # also takes its flag
            arguments.append(field.name.upper())
            nargs = kind.get("nargs", "?")
            group.add_argument(field.name, **{**kind, "nargs": nargs, "metavar": arguments[-1]}, help=help)
            help = argparse.SUPPRESS
        group.add_argument(flag(field.name), dest=field.name, help=help, **kind)
        aliases = [flag(alias) for each in said for alias in each.get("aliases", ())]
        if aliases:
            parser.add_argument(*dict.fromkeys(aliases), dest=field.name, help=argparse.SUPPRESS, **kind)
        if "action" in kind and "nargs" not in kind:
            parser.switches |= {flag(field.name), *aliases}
    parser.usage = " ".join([prog, *arguments, "[flags]"])
    parser.epilog = f"{hidden} more flags: {prog} --help-all. " if hidden else ""
    parser.epilog += (
        "--config FILE.yaml reads flags from a file, --print-config prints them, --debug shows tracebacks."
    )
    return parser


def is_positional(hint: Any) -> bool:
    return "positional" in getattr(hint, "__metadata__", ())


def _kind(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    """What argparse is told of a setting."""
    types = leaf_types(hint)
    if types <= {bool, type(None)}:
        return {"action": argparse.BooleanOptionalAction}
    if dict in types:
        return {"nargs": "*", "action": "extend", "metavar": "NAME=VALUE"}
    words = ((int, "INT"), (float, "NUMBER"), (Path, "PATH"))
    metavar = next((word for kind, word in words if kind in types), "TEXT")
    if choices := re.search(r"Literal\[(.*?)\]", str(hint)):
        metavar = "{" + choices[1].replace("'", "").replace(" ", "") + "}"
    if "tuple[" in str(hint):
        return {"nargs": "*", "action": "extend", "metavar": metavar}
    alone = field.metadata.get("alone")
    return {"metavar": metavar, **({"nargs": "?", "const": alone} if alone else {})}


def _with_default(text: str, default: Any) -> str:
    """Help, with the default where the help does not speak of it."""
    unsaid = default is None or isinstance(default, bool) or default in ((), "", dataclasses.MISSING)
    if unsaid or "default" in text.lower():
        return text
    values = default if isinstance(default, tuple) else [default]
    shown = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return f"{text} (default: {shown})"


def help_text(flags_type: type, prog: str, description: str, *, everything: bool) -> str:
    """The text that --help prints; with `everything`, --help-all."""
    return _parser(flags_type, prog, description, everything=everything).format_help()


# ---- words ----


def parse(flags_type: type[T], words: Sequence[str], prog: str) -> T:
    """The `flags_type` of the words. UserError: a bad value, unknown flags (with the nearest) or keys of YAML."""
    hints, given = field_types(flags_type), _parsed(flags_type, words, prog)
    file = given.pop("config", None)
    from_file = {} if file is None else _read_file(file, hints)
    for name in given:
        if dict in leaf_types(hints[name]):
            given[name] = {**(from_file.get(name) or {}), **_assignments(flag(name), given[name])}
    values = validated(flags_type, from_file, f"--config {file}") | validated(flags_type, given)
    for field in dataclasses.fields(flags_type):  # pyright: ignore[reportArgumentType]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and required and field.name not in values:
            what = field.name.upper() if is_positional(hints[field.name]) else flag(field.name)
            raise UserError(f"{what} is needed; see {prog} --help")
    return flags_type(**values)


def _parsed(flags_type: type, words: Sequence[str], prog: str) -> dict[str, Any]:
    """Values by field name, mostly text; what follows `--` is for the argument. UserError: words that no flag takes."""
    parser, hints = _parser(flags_type, prog), field_types(flags_type)
    theirs = original.FLAGS if "opt" in hints else set[str]()
    for name in theirs:
        parser.add_argument(flag(name), nargs="?", const="")
    end = words.index("--") if "--" in words else len(words)
    rest, simple = list(words[end + 1 :]), list[str]()
    for word in words[:end]:
        name, equals, value = word.partition("=")
        if simple and simple[-1] in parser.switches and word.lower() in ("true", "false"):
            simple[-1] = simple[-1] if word.lower() == "true" else f"--no-{simple[-1][2:]}"
        else:
            simple.append(name.replace("_", "-") + equals + value if name.startswith("--") else word)
    found, extra = parser.parse_known_intermixed_args(simple)
    given = {name: value for name, value in vars(found).items() if value is not None}
    if theirs & given.keys():
        original.take_over(given)
    many = [name for name, hint in hints.items() if is_positional(hint) and "tuple[" in str(hint)]
    if unexpected := extra if many else [*extra, *rest]:
        _refuse(unexpected, list(parser._option_string_actions), prog)
    if rest:
        given[many[-1]] = [*given.get(many[-1], []), *rest]
    return given


def _refuse(extra: Sequence[str], flags: list[str], prog: str) -> NoReturn:
    """Name all unknown flags at once, each with the nearest spelling."""
    unknown = list(dict.fromkeys(word.partition("=")[0] for word in extra if re.match("--.", word)))
    if not unknown:
        raise UserError(f"unexpected argument '{extra[0]}'; see {prog} --help")
    known = [flag.lstrip("-") for flag in flags]  # compared without the dashes, which all share
    hints = [nearest(word.lstrip("-"), known).replace("'", "--", 1).replace("'", "") for word in unknown]
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
        parts = [plain_value(part) for part in text.split(",")]
        values[name.replace("-", "_")] = parts if len(parts) > 1 else parts[0]
    return values


def plain_value(text: str) -> Any:
    """A word as a number, true or false, None or text, in this order of preference."""
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _read_file(file: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    loaded = read_yaml(expand_home(file)) or {}
    if not isinstance(loaded, dict):
        raise UserError(f"--config {file}: a mapping of names to values is expected")
    values = {str(key).replace("-", "_"): value for key, value in loaded.items()}
    for key in values:
        if key not in hints:
            raise UserError(f"--config {file}: unknown key '{key}'{nearest(key, hints)}")
    return values


def as_yaml(flags: Any, resolved: Mapping[str, Any]) -> str:
    """The configuration as YAML that `--config` reads; `resolved` replaces automatic values."""
    shown = [field.name for field in dataclasses.fields(flags) if not field.metadata.get("hidden")]
    return to_yaml(plain({name: resolved.get(name, getattr(flags, name)) for name in shown}))
