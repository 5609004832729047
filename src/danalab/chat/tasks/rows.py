"""Rows of a data set of tasks: local files (.jsonl, .jsonl.gz, .csv, .parquet), or the Hugging Face hub."""

import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from danalab.errors import MissingExtra, UserError, first_line

Row = Mapping[str, Any]
SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".parquet")


def read_rows(path: str | Path, split: str = "") -> list[tuple[str, Row]]:
    """(place for messages, row) of each row of a file, or of the files of a folder whose names contain `split`.

    Raises:
        UserError: no such file, no file of the split, or malformed content; names the line.
        MissingExtra: .parquet without pyarrow.
    """
    path = Path(path)
    if not path.is_dir():
        return list(_read_file(path))
    known = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(SUFFIXES))
    if not known:
        raise UserError(f"{path}: no {', '.join(SUFFIXES)} in this folder")
    files = [file for file in known if split in str(file.relative_to(path))] if split else known
    if not files:
        raise UserError(f"{path}: no file of the split '{split}'; there are: {', '.join(f.name for f in known[:6])}")
    return [found for file in files for found in _read_file(file)]


def load_hub_rows(repository: str, config: str | None, split: str) -> list[tuple[str, Row]]:
    """(place, row) of each row of a data set of the hub.

    Raises:
        MissingExtra: `datasets` is not installed.
        UserError: the hub cannot be reached, or has no such data set or split; says how to use local files.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("datasets", "data", f"the data set {repository}") from error
    try:
        found: Any = datasets.load_dataset(repository, config, split=split)
    except Exception as error:  # the library raises errors of a dozen packages
        raise UserError(
            f"{repository} ({split}): the hub says: {first_line(error)}; "
            "for a local copy give the task path=FILE or path=FOLDER"
        ) from error
    return [(f"{repository} {split} row {number}", row) for number, row in enumerate(found, 1)]


def text_field(row: Row, name: str, place: str) -> str:
    """The text of a field, without spaces around it.

    Raises:
        UserError: the field is missing, empty or no text; names the place.
    """
    value = row.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        problem = "missing" if value is None else "empty" if isinstance(value, str) else "not text"
        raise UserError(f'{place}: the field "{name}" is {problem}')
    return value.strip()


def _read_file(path: Path) -> Iterator[tuple[str, Row]]:
    if not path.name.endswith(SUFFIXES):
        raise UserError(f"{path}: the file of a task is one of {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            yield from (_csv if path.suffix == ".csv" else _lines)(file, path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except (EOFError, OSError) as error:  # of an archive, too
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or first_line(error)}") from error


def _lines(file: Any, path: Path) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: not valid JSON: {first_line(error)}") from None
        if not isinstance(row, dict):
            raise UserError(f"{place}: an object is expected")
        yield place, row


def _csv(file: Any, path: Path) -> Iterator[tuple[str, Row]]:
    for number, row in enumerate(csv.reader(file), 1):
        yield f"{path}, row {number}", {str(column): value for column, value in enumerate(row)}


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", f"reading {path.name}") from error
    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowException as error:
        raise UserError(f"{path}: not a readable parquet file: {first_line(error)}") from error
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", row
