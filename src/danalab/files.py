"""Files: atomic writes, hashes, and reading of JSON and YAML that somebody else may have written."""

import contextlib
import gzip
import hashlib
import json
import math
import os
import re
import stat
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

from danalab.errors import UserError

MAX_TEXT_BYTES = 1 << 28
_MAX_YAML_NODES = 100_000
_MAX_DIGITS = 4_000  # of an integer; Python's own bound differs between its versions, and can be turned off
_MANY_DIGITS = "a number with thousands of digits"
T = TypeVar("T")


@contextlib.contextmanager
def naming(path: object) -> Iterator[None]:
    """Name `path` in a system's error without a file's name: the system doesn't name a file that is open."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def fsync_path(path: str | os.PathLike[str]) -> None:
    """Make a file's content durable, or renames and new names in a folder; an OSError names the path."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expand_home(path: str) -> str:
    """`path` with a leading `~`, `~USER`, `$NAME` or `${NAME}` expanded, as in a shell; `./~` is a file of that name.

    UserError: there is no such user or variable.
    """
    head, slash, rest = path.partition("/")
    if variable := re.fullmatch(r"\$(\w+|\{\w+\})", head):
        value = os.environ.get(variable[1].strip("{}"))
    elif head.startswith("~"):
        value = None if (home := os.path.expanduser(head)) == head else home
    else:
        return path
    if not value:
        what = "a variable that is not set" if variable else "the home of nobody who is known"
        raise UserError(f"{head} is {what}; ./{head} is a file of that name")
    return f"{value}{slash}{rest}"


def environment_path(name: str) -> Path | None:
    """The path in a variable of the environment, expanded by `expand_home`; None where it is not set."""
    if not (value := os.environ.get(name)):
        return None
    try:
        return Path(expand_home(value))
    except UserError as error:
        raise UserError(f"{name}={value} in the environment: {error}") from error


def cache_folder(name: str = "") -> Path:
    """A folder for files that can be made again: `$XDG_CACHE_HOME/danalab/NAME`, by default in ~/.cache.

    A user without a home, as in a container, has one among the temporary files.
    """
    if given := environment_path("XDG_CACHE_HOME"):
        return given / "danalab" / name
    caches = os.path.expanduser("~/.cache")
    if caches.startswith("~"):
        return Path(tempfile.gettempdir()) / f"danalab-{os.getuid()}" / name
    return Path(caches) / "danalab" / name


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` so that a reader sees the old file or the whole new one, whatever happens in between.

    Temporary file in the same folder, fsync, rename, fsync of the folder. The temporary file is removed on failure, an
    OSError that names a file: the disk is full, or the folder cannot be written.
    """
    path = Path(path)
    payload = data.encode() if isinstance(data, str) else data
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with naming(path), os.fdopen(descriptor, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; a run folder is shared like any other file of its owner.
        os.umask(mask := os.umask(0))
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


def walk_files(folder: Path) -> Iterator[Path]:
    """All files below `folder` in any order, links to folders followed once; names that begin with a dot are skipped.

    UserError: a folder that cannot be read.
    """

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # deleted since it was listed
            raise UserError(f"{error.filename}: {error.strerror}") from error

    seen: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        try:
            status = os.stat(root)
        except FileNotFoundError:
            folders.clear()
            continue
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder that was met already
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        # sorted: where two names lead to one folder, the same one is met first in every run
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in names if not name.startswith("."))


def sha256(path: str | os.PathLike[str]) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_text(path: str | os.PathLike[str]) -> str:
    """The UTF-8 text of a regular file of facts (a named pipe would block), of up to 256 MiB; UserError: not one.

    A file whose name ends with `.gz` is unpacked.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path}: not a regular file")
        if status.st_size > MAX_TEXT_BYTES:
            raise UserError(f"{path}: {status.st_size:,} bytes; at most {MAX_TEXT_BYTES:,} are read")
        if not str(path).endswith(".gz"):
            return Path(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        with gzip.open(path, "rt", encoding="utf-8-sig") as file:
            text = file.read(MAX_TEXT_BYTES + 1)
        if len(text) > MAX_TEXT_BYTES:
            raise UserError(f"{path} has more than {MAX_TEXT_BYTES:,} bytes unpacked; it must have at most that many")
        return text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged or cut short ({error}); it must be a whole gzip file") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8: {error}") from error
    except UserError:
        raise
    except ValueError as error:
        raise impossible_path(path) from error


def impossible_path(path: object) -> UserError:
    """The error for a path that Python refuses before the system sees it, with a ValueError in words of its version."""
    return UserError(f"{str(path)!r} is not a path: it has a null byte or a lone surrogate; it must have neither")


def parse_json(text: str, place: object) -> Any:
    """Parse JSON; a UserError says `place`, where the text is from, and what is malformed."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} ({f'line {error.lineno}, ' if error.lineno > 1 else ''}column {error.colno})"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError:  # Python's bound on the digits of an integer
        reason = _MANY_DIGITS
    raise UserError(f"{place}: not valid JSON: {reason}")


def sound_objects(lines: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of lines, without lines that are none: a kill may have cut one short."""
    for line in lines.split(b"\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def read_json(path: str | os.PathLike[str]) -> Any:
    """Parse a JSON file; errors as of `read_text` and `parse_json`."""
    return parse_json(read_text(path), path)


def read_yaml(path: str | os.PathLike[str], *, own_tags: bool = False) -> Any:
    """Parse a YAML file by YAML 1.2's core schema: `1e-3` is a number, `no` and `1:30` are text; `012` is refused.

    Merges (`<<`) are those of 1.1. `own_tags`: values with tags of an application's own (`!function`) are None.
    UserError: malformed, a tag of another schema, a key given twice, or aliases without bound.
    """
    import yaml

    text = read_text(path)
    try:
        loader = _core_schema()[0](text)
        if own_tags:
            loader.yaml_multi_constructors = {"!": lambda loader, suffix, node: None}
        root = loader.get_single_node()
        if root is None:
            return None
        _expanded_nodes(root, {}, loader.construct_object)
        return loader.construct_document(root)
    except RecursionError as error:
        raise UserError(f"{path}: not valid YAML: nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    except (KeyError, IndexError, AttributeError, TypeError) as error:  # of a tag such as !!bool before another value
        raise UserError(f"{path}: not valid YAML: a value does not fit its tag ({error})") from error


def to_yaml(value: Any, *, flow: bool | None = False) -> str:
    """`value` as YAML that `read_yaml` reads back; text that YAML 1.1 or 1.2 takes for something else is quoted."""
    import yaml

    return yaml.dump(value, Dumper=_core_schema()[1], sort_keys=False, default_flow_style=flow)


_SCALARS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (
        r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        lambda text: int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)),
    ),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        lambda text: float(re.sub(r"\.(?=[in])", "", text.lower())),
    ),
    "merge": ("<<", str),
}
"""Kinds of YAML 1.2's core schema: the pattern of a plain scalar, and its value."""


@cache
def _core_schema() -> tuple[Any, Any]:
    """(loader, dumper) of the core schema; PyYAML's own are of YAML 1.1, where 012 is 10 and `no` is false."""
    import yaml

    kept = (None, *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")))
    constructors = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in kept}
    own = {"yaml_implicit_resolvers": {}, "yaml_constructors": constructors}
    Loader: Any = type("Loader", (yaml.SafeLoader,), own)
    Dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    for kind, (pattern, value_of) in _SCALARS.items():
        tag, whole = f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})\Z")

        def construct(loader: Any, node: Any, kind: str = kind, whole: Any = whole, value_of: Any = value_of) -> Any:
            if not whole.match(text := loader.construct_scalar(node)):
                raise ValueError(f"{text!r} is no {kind}")
            if kind == "int" and re.match(r"[-+]?0[0-9]", text):
                plain = re.sub(r"(?<!\d)0+(?=\d)", "", text)
                raise ValueError(f"{text} is {plain} in YAML 1.2 and octal in 1.1; write {plain}, or '{text}' for text")
            return value_of(text)

        Loader.add_constructor(tag, construct)
        for each in (Loader, Dumper):
            each.add_implicit_resolver(tag, whole, None)
    return Loader, Dumper


def _expanded_nodes(node: Any, known: dict[int, int], value_of: Callable[[Any], Any]) -> int:
    """Number of YAML nodes when aliases are written out; ValueError: endless or too many. `known`: 0 while counting."""
    if id(node) not in known:
        known[id(node)] = 0
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > _MAX_DIGITS:
            raise ValueError(_MANY_DIGITS)
        children = node.value if isinstance(node.value, list) else []
        keys = (child[0] for child in children if isinstance(child, tuple))
        require_unique(value_of(key) for key in keys if isinstance(key.value, str))
        parts = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        known[id(node)] = 1 + sum(_expanded_nodes(part, known, value_of) for part in parts)
    if known[id(node)] == 0:
        raise ValueError("an alias contains itself")
    if known[id(node)] > _MAX_YAML_NODES:
        raise ValueError(f"more than {_MAX_YAML_NODES:,} values when aliases are written out")
    return known[id(node)]


def require_unique(names: Iterable[Any]) -> None:
    """Check that each key of a mapping is given once; a ValueError names the first that is not."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{name} is given {count} times; leave one")


def require_uncompressed(file: IO[bytes], size: int) -> None:
    """ValueError: a zip archive of `size` bytes, whose beginning is in `file`, unpacks to more, or it is none."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            for name in [member.filename for member in members if member.filename.endswith("data.pkl")]:
                with archive.open(name) as pickled:
                    refuse_shared_tuples(pickled)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"not an archive of tensors: {error}") from error
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("compressed; archives of tensors are not")
    if sum(member.file_size for member in members) > size:
        raise ValueError(f"its contents claim more than its {size:,} bytes")


_SHAREABLE = {"GLOBAL", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "REDUCE", "BINPERSID"}


def refuse_shared_tuples(pickled: IO[bytes]) -> None:
    """ValueError if a pickle of tensors repeats a tuple (texts and objects may repeat) or is none; nothing is loaded.

    Hashing a tuple of twice a tuple of twice a tuple ... takes a time exponential in the depth.
    """
    import pickletools

    shareable: dict[int, bool] = {}
    made_by = ""
    for code, argument, _ in pickletools.genops(pickled):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            shareable[len(shareable) if argument is None else int(argument)] = made_by in _SHAREABLE
            continue
        gets = code.name in ("GET", "BINGET", "LONG_BINGET")
        if code.name == "DUP" or (gets and not shareable.get(int(argument or 0))):
            raise ValueError("its pickle repeats a tuple")
        made_by = code.name


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def validated(kind: type[T], content: Any, place: object, *, strict: bool = False) -> T:
    """`content` of a file as a `kind` that pydantic can check; a UserError says `place` and the first misfit in a line.

    `strict`: only the types that JSON has for a field: no number in quotes, no truth value in place of a number.
    """
    from pydantic import ValidationError

    try:
        adapter = _adapter(kind)
        return adapter.validate_json(json.dumps(content), strict=True) if strict else adapter.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{place}: malformed: {f'{where}: ' if where else ''}{first['msg'].removeprefix('Value error, ')}"
        ) from error


def read_state(kind: type[T], path: str | os.PathLike[str]) -> T:
    """A JSON file that a program wrote, as a `kind`; errors as of `read_json` and `validated`."""
    return validated(kind, read_json(path), path)


def finite(value: Any) -> Any:
    """A value for JSON, with None for infinity and NaN."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2) + "\n")
