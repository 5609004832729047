"""Fields of configuration classes: default, range, flag and kind stand beside the name; pydantic validates values.

A section is a frozen data class. Its annotations hold types and ranges, the docstring below a field is its help.
"""

import contextlib
import dataclasses
import math
import re
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from danalab.errors import UserError
from danalab.files import expand_home

Kind = Literal["run", "input", "data", "execution", "job"]
"""What a changed value means for an existing run folder. run: it is another run, refused. input: nothing by itself; the
values that `resolve` computes from it are compared. data: nothing if the data have the same fingerprint. execution: the
same run, carried out or reported in another way. job: it concerns one job of the run."""

try:
    from annotated_types import Ge, Gt, Lt
except ModuleNotFoundError:  # with torch alone; the flags of `danalab optim list` and `export` have no bounds
    Ge = Gt = Lt = str

Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0), Lt(math.inf)]
NonNegative = Annotated[float, Ge(0), Lt(math.inf)]

PathText = Annotated[str, "path"]
"""A path, or a name or FILE.py:NAME; or several of these with commas."""

Dtype = Literal["float32", "bfloat16", "float16"]
MergeShape = Literal["linear", "cosine", "1-sqrt"]
"""Shapes of the decay that a merge of checkpoints imitates."""

SPELLINGS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Other spellings of the choices of a setting."""
LARGEST_INTEGER = 2**64 - 1


def setting(
    default: Any = dataclasses.MISSING,
    *,
    factory: Any = dataclasses.MISSING,
    kind: Kind = "run",
    aliases: tuple[str, ...] = (),
    main: bool = False,
    choices: Callable[[], list[str]] | None = None,
) -> Any:
    """A field of a section; `aliases`: other flags for it, "NAME=VALUE" with a value; `main`: --help shows it;
    `choices`: gives the names that the help shows, where the type has none."""
    metadata = {"kind": kind, "aliases": aliases, "main": main, "choices": choices}
    return dataclasses.field(default=default, default_factory=factory, metadata=metadata)


def flag(name: str) -> str:
    """The spelling of a field on the command line."""
    return "--" + name.rstrip("_").replace("_", "-")


def names_of(section: type, *kinds: Kind) -> frozenset[str]:
    """The fields of the given kinds."""
    return frozenset(field.name for field in dataclasses.fields(section) if field.metadata.get("kind", "run") in kinds)


class _TakesFolded(type):
    """Classes that take further keywords into their fields: `TrainConfig(kappa=0.8)`, and `dataclasses.replace`."""

    folded: ClassVar[Mapping[str, str]]

    def __call__(cls, *args: Any, **given: Any) -> Any:
        for name in cls.folded.keys() & given.keys():
            given[cls.folded[name]] = {**(given.get(cls.folded[name]) or {}), name: given.pop(name)}
        return super().__call__(*args, **given)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section(metaclass=_TakesFolded):
    """A group of settings that belong together; UserError: wrong type, out of range, or a contradiction in them."""

    title: ClassVar[str] = ""
    """Heading in the help."""
    folded: ClassVar[Mapping[str, str]] = {}
    """Keyword of the constructor -> the field, a dictionary, that takes it."""

    def __post_init__(self) -> None:
        for name, value in validated(type(self), vars(self)).items():
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Refuse contradictions between settings; a section calls that of the next one."""

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values for JSON and YAML."""
        return {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


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

    def refuse(name: str, value: Any, expected: str) -> typing.NoReturn:
        shown = f"{where}: {name}: {value!r:.100}" if where else f"{flag(name)} {value!s:.100}"
        raise UserError(f"{shown}: {expected}") from None

    prepared = {}
    for name, value in values.items():
        try:
            prepared[name] = _prepared(value, hints[name])
        except ValueError as error:
            refuse(name, value, str(error))
    try:
        from pydantic import ValidationError
    except ModuleNotFoundError:  # with torch alone; words, paths and switches need it not
        if not all(leaf_types(hints[name]) <= {str, Path, bool, type(None)} for name in values):
            raise
        return {name: _read_plainly(value, leaf_types(hints[name])) for name, value in prepared.items()}
    try:
        return _adapter(cls).validate_python(prepared)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        refuse(str(details["loc"][0]), details["input"], _expectation(details))


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Name -> annotation of the fields that the constructor takes."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


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


def _read_plainly(value: Any, types: frozenset[Any]) -> Any:
    return Path(value) if Path in types and value is not None else value in (True, "true") if bool in types else value


@cache
def _adapter(cls: type) -> Any:
    from pydantic import TypeAdapter
    from typing_extensions import TypedDict

    return TypeAdapter(TypedDict(cls.__name__, field_types(cls), total=False))  # pyright: ignore[reportArgumentType]


def _prepared(value: Any, hint: Any) -> Any:
    """A value before pydantic converts it; ValueError where it would by mistake (true into 1) says what is expected."""
    if isinstance(value, (list, tuple)):
        return [_prepared(item, hint) for item in value]
    types = leaf_types(hint)
    if isinstance(value, bool) and bool not in types:
        raise ValueError(f"must be {'a number' if types & {int, float} else 'text'}")
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER and types & {int, float}:
        raise ValueError("must be below 2^64")
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, (int, float)) and str in types and typing.get_origin(hint) is tuple:
        return str(value)
    if isinstance(value, (int, float)) and types & {str, Path} and not types & {int, float, bool}:
        raise ValueError("must be text; write it in quotes" if str in types else "must be a path; write it in quotes")
    if not isinstance(value, str):
        return value
    if SPELLINGS.get(value.lower(), value) in str(hint):
        value = SPELLINGS.get(value.lower(), value)
    if "\0" in value:
        raise ValueError("must not contain a null character")
    if value.lower() == "none" and type(None) in types and (str not in types or value == "None"):
        return None
    value = expand_paths(value, hint)
    if int in types and re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d{1,2}", value):  # 1e3 steps
        return float(value)
    return value


def expand_paths(value: str, hint: Any) -> str:
    """The text of a setting, with `danalab.files.expand_home` where the field's annotation `hint` has paths."""
    if Path in leaf_types(hint):
        return expand_home(value)
    return ",".join(map(expand_home, value.split(","))) if "'path'" in str(hint) else value


_EXPECTATIONS = {
    "int_parsing": "must be a whole number", "int_type": "must be a whole number",
    "int_from_float": "must be a whole number", "int_parsing_size": "must be below 2^64",
    "float_parsing": "must be a number", "float_type": "must be a number",
    "bool_parsing": "must be true or false", "bool_type": "must be true or false",
    "greater_than_equal": "must be at least {ge:g}", "greater_than": "must be more than {gt:g}",
    "less_than": "must be less than {lt:g}", "less_than_equal": "must be at most {le:g}",
    "finite_number": "must be finite", "literal_error": "must be {expected}",
    "string_type": "must be text", "path_type": "must be a path", "tuple_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
}  # fmt: skip


def _expectation(details: Mapping[str, Any]) -> str:
    template = _EXPECTATIONS.get(details["type"])
    with contextlib.suppress(TypeError, ValueError):  # not a number
        if not math.isfinite(float(details["input"])):
            return "must be finite"
    if template is None:
        return str(details["msg"]).replace("Input should be", "must be")
    return template.format(**details.get("ctx", {}))
