"""The flags of a data class: name, help and section of each, from its fields and the docstrings below them."""

import argparse
import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from danalab.files import finite
from danalab.train.config.fields import field_types, flag, leaf_types

T = TypeVar("T")
Positional = Annotated[T, "positional"]
"""A field that is given without a flag: `path: Positional[Path]`."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One flag."""

    name: str
    """Name of the field."""
    metavar: str
    default: str = ""
    """Default that the help shows; empty where the docstring says it."""
    help: str = ""
    section: str = ""
    """Heading in `--help-all`."""
    heading: str = "flags"
    """Heading in `--help`."""
    is_switch: bool = False
    is_mapping: bool = False
    """Whether its values are NAME=VALUE."""
    many: bool = False
    """Whether it takes several values."""
    positional: bool = False
    shown: bool = True
    """Whether `--help` lists it; `--help-all` lists all."""
    aliases: tuple[str, ...] = ()
    last: float = 0.0
    """Its place: options of a section with `last = True` stand below the others."""

    @property
    def flag(self) -> str:
        """The flag as it is typed."""
        return "--set" if self.name == "optimizer_settings" else flag(self.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonFlags:
    """The flag of verbs whose result programs can read."""

    last: ClassVar[float] = True

    json: bool = False
    """Print one JSON object on standard output."""

    def print_json(self, content: Any) -> bool:
        """Print the result where --json asks for it, with null for infinity and NaN; whether it does."""
        if self.json:
            print(json.dumps(finite(content), allow_nan=False))
        return self.json


def options_of(flags_type: type) -> list[Option]:
    """The flags of `flags_type`, in the order of its fields. Its attribute `main`, where there is one, names those that
    `--help` lists."""
    options, main = [], getattr(flags_type, "main", None)
    for field in dataclasses.fields(flags_type):
        if not field.init or field.metadata.get("hidden"):
            continue
        hint = field_types(flags_type)[field.name]
        types = leaf_types(hint)
        declared_by = next(base for base in flags_type.__mro__ if field.name in inspect.get_annotations(base))
        section = "" if declared_by is flags_type else getattr(declared_by, "title", "")
        is_switch = types <= {bool, type(None)}
        options.append(
            Option(
                name=field.name,
                metavar="" if is_switch else _metavar(field, hint, types),
                default=_shown(field.default),
                help=field.metadata.get("help", ""),
                section=section,
                is_switch=is_switch,
                is_mapping=dict in types,
                many="tuple[" in str(hint) or dict in types,
                positional="positional" in getattr(hint, "__metadata__", ()),
                shown=field.name in main if main else field.metadata.get("main", False) or not section,
                aliases=field.metadata.get("aliases", ()),
                last=0.0 if declared_by is flags_type else float(vars(declared_by).get("last", 0.0)),
            )
        )
    return options


def docstrings(flags_type: type) -> dict[str, str]:
    """Name -> docstring below the field."""
    found: dict[str, str] = {}
    # From the source: Python keeps no docstrings of fields.
    for base in [base for base in reversed(flags_type.__mro__) if dataclasses.is_dataclass(base)]:
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # pyright: ignore[reportAttributeAccessIssue]
        for node, below in pairwise(body):
            match node, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                    found[name] = " ".join(str(text).split())
    return found


def _metavar(field: dataclasses.Field[Any], hint: Any, types: frozenset[Any]) -> str:
    if (choices := field.metadata.get("choices")) is not None:
        return "{" + ",".join(choices()) + "}"
    if dict in types:
        return "NAME=VALUE"
    if choices := re.search(r"Literal\[(.*?)\]", str(hint)):
        return "{" + choices[1].replace("'", "").replace(" ", "") + "}"
    return next(
        (word for kind, word in ((int, "INT"), (float, "NUMBER"), (Path, "PATH")) if kind in types), "TEXT"
    )


def _shown(value: Any) -> str:
    if value in (None, False, (), "", dataclasses.MISSING):
        return ""
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else "yes" if value is True else str(value)


def help_text(options: Sequence[Option], prog: str, description: str, *, everything: bool) -> str:
    """The text that --help prints."""
    parser = argparse.ArgumentParser(
        prog=prog,
        add_help=False,
        description=description,
        usage=" ".join([prog, *(option.name.upper() for option in options if option.positional), "[flags]"]),
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
    )
    groups: dict[str, Any] = {}
    hidden = 0
    for option in sorted(options, key=lambda option: (not option.positional, option.last)):
        if not (everything or option.shown):
            hidden += 1
            continue
        title = option.section if everything and option.section else option.heading
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        text = option.help.replace("%", "%%")
        if option.default and "default" not in text.lower():
            text += f" (default: {option.default})"
        if option.positional:
            groups[title].add_argument(option.name, metavar=option.name.upper(), help=text)
        elif not option.is_switch:
            groups[title].add_argument(option.flag, metavar=option.metavar, help=text)
        else:
            both = [option.flag, *(["--no-" + option.flag[2:]] if "default" in text.lower() else [])]
            groups[title].add_argument(*both, action="store_true", help=text)
    more = [f"{hidden} more flags: {prog} --help-all."] if hidden else []
    more.append(
        "--config FILE.yaml reads flags from a file, --print-config prints them, --debug shows tracebacks."
    )
    parser.epilog = " ".join(more)
    return parser.format_help()
