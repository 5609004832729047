"""Fields of configuration classes: default, help, range, flag and kind stand together; pydantic validates values."""

import dataclasses
import math
import re
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from annotated_types import Ge, Gt, Lt

from danalab.errors import UserError
from danalab.files import expand_home

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
) -> Any:
    """A field of a section; `aliases`: other flags for it; `main`: --help shows it; `hidden`: it is no flag."""
    metadata = {
        "help": help,
        "kind": kind,
        "aliases": aliases,
        "main": main,
        "hidden": hidden,
    }
    return dataclasses.field(default=default, default_factory=factory, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonFlags:
    """The flag of verbs whose result programs can read."""

    json: bool = setting(False, "Print one JSON object on standard output.", kind="job")


def flag(name: str) -> str:
    """The spelling of a field on the command line."""
    return "--" + name.rstrip("_").replace("_", "-")


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
