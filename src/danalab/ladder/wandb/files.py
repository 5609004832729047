"""Runs exported from Weights & Biases: histories, configurations and summaries, from files or from its API.

    NAME.csv          one run's history: a column a metric (`run.history().to_csv`)
    *.csv             a chart of several runs, as the web page exports it: columns "NAME - metric", an axis like Step
    *.csv             a table of runs: a line a run, columns of configuration and summary (the web page's, or the
                      documentation's script with its columns name, config, summary)
    NAME.jsonl        one run's history, an object a line
    NAME.json         one run's history as a list; or {"name", "config", "summary", "history"}, or a list of such

The format follows from the content. Parts of one run in several files are merged by its name.
"""

import ast
import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danalab.errors import MissingExtra, UserError
from danalab.files import read_text

PLACE = ""
"""Key of a step's file and line; no metric has this name."""
_CHART_COLUMN = re.compile(r"(?P<run>.+) - (?P<key>.+?)(?P<bound>__MIN|__MAX)?")
_TABLE_NAMES = ("Name", "name", "run_name", "display_name")
_STEPS = ("_step", "Step", "step", "iter")
_IDS = ("id", "run_id", "ID")


@dataclass
class Export:
    """The exported data of one run."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    """Values by key for each logged step. Under `PLACE`: file and line, for messages."""
    where: str = ""
    """File, for messages."""

    def add(self, other: "Export") -> None:
        """Merge another file's values of the same run."""
        self.config |= other.config
        self.summary |= other.summary
        self.history += other.history
        self.where = self.where or other.where


def read_exports(paths: Sequence[Path]) -> list[Export]:
    """All runs of files and folders of files, by name."""
    files: list[Path] = []
    for path in paths:
        found = (
            sorted(each for end in ("csv", "json", "jsonl") for each in path.rglob(f"*.{end}"))
            if path.is_dir()
            else [path]
        )
        if not found:
            raise UserError(f"{path}: no .csv, .json or .jsonl file in the folder")
        files += found
    runs: dict[str, Export] = {}
    for file in files:
        for export in _read(file):
            runs.setdefault(export.name, Export(export.name)).add(export)
    return list(runs.values())


def read_api(path: str, filters: Mapping[str, Any] | None = None) -> list[Export]:
    """All runs of a project, over the network.

    Args:
        path: entity/project.
        filters: in the API's form, such as {"group": "enoki"}.
    """
    try:
        import wandb
    except ImportError as error:
        raise MissingExtra("wandb", "track", "--api") from error
    try:
        runs = wandb.Api().runs(path, filters=dict(filters or {}))
        return _apart([
            (
                str(run.id),
                Export(
                    str(run.name), _unwrapped(dict(run.config)), {"state": run.state, **dict(run.summary)},
                    [_present(row) for row in run.scan_history()], f"{path}/{run.id}",
                ),
            )
            for run in runs
        ])  # fmt: skip
    except (wandb.Error, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"--api {path}: {reason}") from error


def _read(file: Path) -> list[Export]:
    text = read_text(file).removeprefix("\ufeff")
    if not text.strip():
        raise UserError(f"{file}: empty")
    if file.suffix == ".csv":
        return _of_csv(file, text)
    if file.suffix == ".jsonl":
        rows = [_json(file, line, number) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        return [_history(file, rows)]
    if file.suffix == ".json":
        return _of_json(file, _json(file, text, 1))
    raise UserError(f"{file}: .csv, .json or .jsonl is expected")


# ---- JSON ----


def _json(file: Path, text: str, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{file}:{error.lineno + first_line - 1}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:  # a number with thousands of digits
        raise UserError(f"{file}:{first_line}: not JSON: {error}") from error


def _of_json(file: Path, loaded: Any) -> list[Export]:
    if isinstance(loaded, dict) and isinstance(loaded.get("runs"), list):
        loaded = loaded["runs"]
    if isinstance(loaded, list) and loaded and all(isinstance(each, dict) and _is_run(each) for each in loaded):
        return _apart([_run(file, each) for each in loaded])
    if isinstance(loaded, dict) and _is_run(loaded):
        return [_run(file, loaded)[1]]
    if isinstance(loaded, list):
        return [_history(file, loaded)]
    raise UserError(f"{file}: neither a history (a list of steps) nor runs (with name, config, summary, history)")


def _is_run(each: Mapping[str, Any]) -> bool:
    return any(isinstance(each.get(key), (dict, list)) for key in ("config", "summary", "history"))


def _run(file: Path, each: Mapping[str, Any]) -> tuple[str, Export]:
    name = str(each.get("name") or each.get("display_name") or each.get("id") or file.stem)
    history = each.get("history") or []
    if not isinstance(history, list):
        raise UserError(f"{file}: run {name}: its history is no list of steps")
    config, summary = each.get("config") or {}, each.get("summary") or {}
    if not isinstance(config, dict) or not isinstance(summary, dict):
        raise UserError(f"{file}: run {name}: config and summary are mappings")
    state = {"state": each["state"]} if "state" in each else {}
    rows = _history(file, history).history
    return str(each.get("id") or ""), Export(name, _unwrapped(config), {**state, **summary}, rows, str(file))


def _history(file: Path, rows: Sequence[Any]) -> Export:
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise UserError(f"{file}: step {number} of the history is {type(row).__name__}, an object is expected")
    steps = [
        {**_present(row), PLACE: f"{file}, step {number} of the history"} for number, row in enumerate(rows, start=1)
    ]
    return Export(file.stem, history=steps, where=str(file))


def _unwrapped(config: Mapping[str, Any]) -> dict[str, Any]:
    """The plain configuration; wandb wraps each value as {"value": ..., "desc": ...}."""
    return {
        key: value["value"]
        if isinstance(value, dict) and "value" in value and set(value) <= {"value", "desc"}
        else value
        for key, value in config.items()
        if key not in ("wandb_version", "_wandb")
    }


def _present(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}


def _apart(named: Iterable[tuple[str, Export]]) -> list[Export]:
    """Runs with unique names: W&B allows duplicates, which get their id added."""
    runs = list(named)
    names = [export.name for _, export in runs]
    for number, (id_, export) in enumerate(runs):
        if names.count(export.name) > 1:
            export.name = f"{export.name}-{id_ or number}"
    return [export for _, export in runs]


# ---- CSV ----


def _of_csv(file: Path, text: str) -> list[Export]:
    lines: list[tuple[int, dict[str, Any]]] = []
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        heads = next(reader)
        if len(set(heads)) < len(heads):
            twice = next(head for head in heads if heads.count(head) > 1)
            raise UserError(f"{file}:1: the column '{twice}' appears twice")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(heads):
                raise UserError(f"{file}:{reader.line_num}: {len(cells)} fields, the heading has {len(heads)}")
            lines.append((reader.line_num, dict(zip(heads, cells, strict=True))))
    except csv.Error as error:
        raise UserError(f"{file}:{reader.line_num}: not CSV: {error}") from error
    if not lines:
        raise UserError(f"{file}: a heading and no line below it")
    name = next((key for key in _TABLE_NAMES if key in heads), None)
    if name is not None and not any(step in heads for step in ("_step", "Step", "iter")):
        return _of_table(file, lines, name)
    if any(" - " in head for head in heads):
        return _of_chart(file, heads, lines)
    rows = [{**{key: _value(cell) for key, cell in row.items() if cell}, PLACE: f"{file}:{at}"} for at, row in lines]
    return [Export(file.stem, history=rows, where=str(file))]


def _of_chart(file: Path, heads: Sequence[str], lines: Sequence[tuple[int, Mapping[str, str]]]) -> list[Export]:
    axis = next((head for head in heads if " - " not in head), None)
    if axis is None:
        raise UserError(f"{file}:1: no axis: a column such as Step beside the runs' columns is expected")
    runs: dict[str, Export] = {}
    for head in heads:
        parts = _CHART_COLUMN.fullmatch(head)
        if parts is None or parts["bound"] or parts["key"] in _STEPS:
            continue
        export = runs.setdefault(parts["run"], Export(parts["run"], where=str(file)))
        for at, row in lines:
            if row[head]:
                step = {axis: _value(row[axis]), parts["key"]: _value(row[head]), PLACE: f"{file}:{at}"}
                export.history.append(step)
    return list(runs.values())


def _of_table(file: Path, lines: Sequence[tuple[int, Mapping[str, str]]], name: str) -> list[Export]:
    found = []
    for at, row in lines:
        if not row[name]:
            raise UserError(f"{file}:{at}, column '{name}': a run without a name")
        values: dict[str, Any] = {}
        for key, cell in row.items():
            if key in ("config", "summary") and cell.lstrip().startswith("{"):
                values |= _literal(cell, f"{file}:{at}, column '{key}'")
            elif cell and key != name:
                values[key.removeprefix("config.").removeprefix("summary.")] = _value(cell)
        id_ = next((row[key] for key in _IDS if row.get(key)), "")
        found.append((id_, Export(row[name], _unwrapped(values), dict(values), where=str(file))))
    return _apart(found)


def _literal(cell: str, where: str) -> dict[str, Any]:
    """A mapping as Python prints it, or as JSON."""
    for read in (json.loads, ast.literal_eval):
        try:
            loaded = read(re.sub(r"\bnan\b", "None", cell) if read is ast.literal_eval else cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deeply
            continue
        if isinstance(loaded, dict):
            return loaded
    raise UserError(f"{where}: a mapping is expected, as JSON or as Python prints it")


def _value(cell: str) -> Any:
    try:
        found = float(cell)
    except ValueError:
        return {"true": True, "false": False}.get(cell.lower(), cell)
    return int(found) if math.isfinite(found) and found == int(found) and "." not in cell else found
