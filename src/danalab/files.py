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
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from danalab.errors import UserError

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

    UserError: there is no such user or variable, a null character, or nothing.
    """
    if not path:
        raise UserError("a path is empty; `.` is this folder")
    if "\0" in path:
        raise UserError(f"{path!r}: no path has a null character")
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

    Without a home that can be written, as in a container, it lies among the temporary files.
    """
    if given := environment_path("XDG_CACHE_HOME"):
        return given / "danalab" / name
    caches = Path(os.path.expanduser("~/.cache"))
    if not os.access(caches if caches.exists() else caches.parent, os.W_OK):
        return Path(tempfile.gettempdir()) / f"danalab-{os.getuid()}" / name
    return caches / "danalab" / name


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
    """The UTF-8 text of a regular file (a named pipe would block), unpacked where its name ends with `.gz`."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"{path}: not a regular file")
        if str(path).endswith(".gz"):
            with gzip.open(path, "rt", encoding="utf-8-sig") as file:
                return file.read()
        return Path(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged or cut short ({error}); it must be a whole gzip file") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8: {error}") from error
    except ValueError as error:  # a null byte or a lone surrogate in the path
        raise UserError(f"{str(path)!r} is not a path: {error}") from error


def parse_json(text: str, place: object) -> Any:
    """Parse JSON; a UserError says `place`, where the text is from, and what is malformed."""
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{place}: not valid JSON: nested too deeply") from None
    except ValueError as error:
        # What follows ";" is advice on Python's limit of the digits of a number.
        raise UserError(f"{place}: not valid JSON: {str(error).partition(';')[0]}") from error


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
    """Parse a YAML file; `1e-3` is a number, and a key that appears twice is refused. `own_tags`: of another program,
    whose values with tags of its own (`!function`) are None."""
    import yaml

    class Loader(_yaml_classes()[0]):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [] if own_tags else [key.value for key, _ in node.value if isinstance(key.value, str)]
            for key in keys:
                if keys.count(key) > 1:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"'{key}' appears twice", node.start_mark
                    )
            return super().construct_mapping(node, deep)

    if own_tags:
        Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    text = read_text(path)
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def to_yaml(value: Any, *, flow: bool | None = False) -> str:
    """`value` as YAML that `read_yaml` reads back."""
    import yaml

    return yaml.dump(value, Dumper=_yaml_classes()[1], sort_keys=False, default_flow_style=flow)


@cache
def _yaml_classes() -> tuple[Any, Any]:
    """PyYAML's safe loader and dumper, for which `1e-3` is a number as in YAML 1.2."""
    import yaml

    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    number = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+\Z")
    for each in (loader, dumper):
        each.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return loader, dumper


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
        return (
            adapter.validate_json(json.dumps(content), strict=True)
            if strict
            else adapter.validate_python(content)
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{place}: malformed: {f'{where}: ' if where else ''}"
            f"{first['msg'].removeprefix('Value error, ').replace('valid tuple', 'list')}"
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
