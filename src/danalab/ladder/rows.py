"""Reading ladders, from ladder.jsonl, ladder.jsonl.gz or run folders; and packing them (`danalab.sweep.rows`)."""

import gzip
import json
import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.files import parse_json, read_text, write_atomically
from danalab.sweep.grid import portable_settings
from danalab.sweep.rows import FILE, PACKED, checked_row, device_hours, row_line, row_of
from danalab.train.run.metrics import read_rows

log = logging.getLogger(__name__)


def pack(rows: Iterable[Mapping[str, Any]], folder: Path) -> Path:
    """Write the `rows` of `read_ladder` with all their metrics into the one file `folder`/ladder.jsonl.gz.

    UserError: no rows, two runs of one name, or the folder holds a ladder with its runs; a packed one is replaced.
    """
    packed: dict[str, dict[str, Any]] = {}
    for row in rows:
        settings = {key: value for key, value in row["settings"].items() if value is not None}
        own = {**row, "run": PACKED, "curve": PACKED, "settings": settings, "points": metrics_of(row)}
        if packed.setdefault(row["name"], own) != own:
            raise UserError(f"the run {row['name']} is there twice, with other values; a packed ladder must have one")
    if not packed:
        raise UserError(f"{folder}: no rows to pack into it")
    if (folder / FILE).exists():
        raise UserError(f"{folder} holds a ladder that is not packed; --out must be another folder")
    folder.mkdir(parents=True, exist_ok=True)
    # mtime: the same rows are the same bytes
    write_atomically(folder / PACKED, gzip.compress("".join(map(row_line, packed.values())).encode(), mtime=0))
    return folder / PACKED


def metrics_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl, from the row itself where it has them; none where there is no file."""
    return read_rows(Path(row["curve"])) if row.get("points") is None else row["points"]


def validation_points(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points of a run's curve that have tokens and a validation loss; none where there is no curve."""
    return [point for point in metrics_of(row) if point.get("val/loss") is not None and point.get("tokens")]


def ladder_file(path: Path) -> Path | None:
    """The file of rows that `path` is, or that the folder `path` has; the packed one where it has no other."""
    return next((file for file in (path / FILE, path / PACKED, path) if file.is_file()), None)


def read_ladder(path: Path) -> list[dict[str, Any]]:
    """The rows of a ladder.jsonl or ladder.jsonl.gz, or of the one in a folder, with paths from here."""
    if (file := ladder_file(path)) is None:
        raise UserError(f"{path}: no {FILE} there; danalab sweep and danalab ladder write one")
    lines = read_text(file).splitlines()
    rows: dict[str, dict[str, Any]] = {}
    seen: dict[str, tuple[int, Any]] = {}
    for number, line in enumerate(lines, start=1):
        read = parse_json(line, f"{file}:{number}")
        try:
            row = _resolve_paths(checked_row(read), file.parent)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}:{number}: not a row of a ladder: {error}") from error
        # A run counts once: copies would narrow every interval.
        first, other = seen.setdefault(row["name"] if "name" in read else line, (number, read))
        if other != read:
            raise UserError(f"{file}:{number}: the run {row['name']} is in line {first} too, with other values")
        rows[row["name"] if "name" in read else line] = row
    if not rows:
        raise UserError(f"{file}: no rows")
    unique = list({_identity(row): row for row in rows.values()}.values())
    if len(unique) < len(lines):
        log.warning("%s: %d rows are copies of others and count once", file, len(lines) - len(unique))
    return unique


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """The rows of the run folders in a folder, with paths from here; UserError: there are none, or one is damaged."""
    runs = sorted(file.parent for file in folder.glob("*/config.json"))
    if not runs:
        raise UserError(
            f"{folder} has neither {FILE} nor run folders; it must be a ladder, a sweep or a folder of runs"
        )
    return [_resolve_paths(checked_row(row_of(run, folder)), folder) for run in runs]


def _identity(row: dict[str, Any]) -> str:
    """The same for copies of a run under other names: to the last digit no two runs end alike."""
    if row["final_loss"] is None or not math.isfinite(row["final_loss"]):
        return row["name"]
    keys = ("opt", "seed", "lr", "kappa", "batch", "params", "tokens", "final_loss", "settings")
    return json.dumps([row[key] for key in keys], sort_keys=True)


def _resolve_paths(row: dict[str, Any], base: Path) -> dict[str, Any]:
    """A row with its paths from here, and without its machine."""
    row["settings"] = portable_settings(row["settings"])
    if row["device_hours"] is None:
        row["device_hours"] = device_hours(row["seconds"], row["world_size"])
    row["curve"] = str(_resolve_path(row["curve"], base))
    row["run"] = str(_resolve_path(row["run"], base)) if row["run"] else str(Path(row["curve"]).parent)
    return row


def _resolve_path(path: str, base: Path) -> Path:
    """A row's path from here; an absolute one that no longer exists is searched next to the rows."""
    given = Path(path)
    if given.is_absolute() and not given.exists():
        for count in range(2, len(given.parts)):
            if (moved := base.joinpath(*given.parts[count:])).exists():
                return moved
    return base / given
