"""ladder.jsonl: one row per run, from run folders; ladder.jsonl.gz: the same with the runs' metrics inside.

name, opt, arch, seed, lr     the run; `settings` has all of its settings
batch                         sequences per step
params, non_emb_params, total_params    as built, and by the size law that learning rates are fitted against
tokens, flops, seconds, tokens_per_second, device_hours
optimizer_flops               of the optimizer's own matrix products; `flops` are the model's
data_tokens                   of the training data
final_loss                    [nats/token] over the share val_share of the validation split, mostly all of it
best_loss                     least on the fixed windows
run, curve                    the run folder and its metrics.jsonl, relative to the file
points                        only packed: the rows of metrics.jsonl, unchanged; run and curve are the packed file

Rows hold no absolute paths, so that a ladder can be moved, committed and read elsewhere.
"""

import gzip
import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from danalab.errors import UserError
from danalab.experiments.cells import portable_settings
from danalab.files import finite, parse_json, read_text, validated, write_atomically
from danalab.models.config import ModelConfig
from danalab.optimizer_facts import FACTS, is_address
from danalab.scaling.optimizer_flops import optimizer_flops
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows

log = logging.getLogger(__name__)

FILE = "ladder.jsonl"
PACKED = f"{FILE}.gz"
Row = Mapping[str, Any]


def row_of(run: Path, base: Path) -> dict[str, Any]:
    """The row of a run folder, finished or not."""
    folder = RunFolder(run)
    record = folder.read_config()
    config, plan, summary = record["config"], record["plan"], folder.read_summary() or {}
    losses = [row["val/loss"] for row in read_rows(folder.metrics_file) if "val/loss" in row]
    is_sound = summary.get("status") == "finished" and not summary.get("diverged")
    return {
        "name": run.name,
        "run": os.path.relpath(run, base),
        "status": summary.get("status", "unfinished"),
        "arch": config["arch"],
        "opt": config["opt"],
        "seed": config["seed"],
        "lr": config["lr"],
        "kappa": config["kappa"],
        "lr_multiplier": config["lr_multiplier"],
        "batch": config["global_batch"],
        "params": record["params"],
        "data_tokens": record.get("dataset", {}).get("tokens"),
        "non_emb_params": plan["non_emb_params"],
        "total_params": plan["total_params"],
        "tokens": summary.get("tokens"),
        "flops": summary.get("flops"),
        "optimizer_flops": optimizer_flops_of(config["opt"], config, summary.get("step")),
        "final_loss": finite(summary.get("val/loss")) if is_sound else None,
        "val_share": summary.get("val/share", 1.0),
        "best_loss": min(losses, default=None),
        "seconds": summary.get("time"),
        "device_hours": device_hours(summary.get("time"), record.get("world_size", 1)),
        "tokens_per_second": summary.get("tokens_per_second"),
        "world_size": record.get("world_size", 1),
        "device": record.get("device"),
        "curve": os.path.relpath(folder.metrics_file, base),
        "settings": portable_settings(config),
    }


def is_usable(row: Row) -> bool:
    """Whether a run ended with a finite loss. Others are counted and shown, not fitted."""
    return row["final_loss"] is not None and math.isfinite(row["final_loss"])


def has_diverged(row: Row) -> bool:
    """Whether the run ended by a loss that is not finite, or above that of random guessing."""
    return not is_usable(row) and row["status"] in ("nonfinite", "finished")


def shape_of(settings: Mapping[str, Any]) -> ModelConfig:
    """The model that a row's settings describe. UserError or TypeError: they make none."""
    names = [each.name for each in fields(ModelConfig) if settings.get(each.name) is not None]
    return ModelConfig(**{name: settings[name] for name in names})


def optimizer_flops_of(opt: str, settings: Mapping[str, Any], steps: int | None) -> float | None:
    """FLOPs of the matrix products of a run's optimizer in its first steps; None: they are not known."""
    if is_address(opt) or opt not in FACTS or not steps:
        return None
    try:
        shape = shape_of(settings)
    except (TypeError, UserError):  # the row of another program
        return None
    return optimizer_flops(opt, shape, settings.get("optimizer_settings") or {}, int(steps))


def device_hours(seconds: float | None, world_size: int) -> float | None:
    """Hours of all devices together, or None where the time is unknown."""
    return None if seconds is None else seconds * world_size / 3600


def hours_of(row: Row) -> float:
    """Device-hours of a run; 0 where its time was not logged."""
    return row.get("device_hours") or 0.0


# ---- reading ----
def _file_name(value: str) -> str:
    """Names become names of files: none may lead out of its folder."""
    if value in ("", ".", "..") or PurePath(value).name != value or not value.isprintable() or "\\" in value:
        raise ValueError("it must be the name of a file without a folder")
    return value


FileName = Annotated[str, Field(max_length=200), AfterValidator(_file_name)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class RunRow(BaseModel):
    """One run. Further fields are kept as they are."""

    model_config = ConfigDict(extra="allow")

    name: FileName
    opt: str = Field(min_length=1)
    arch: str | None = None
    status: str = "finished"
    seed: int = 0
    lr: Positive | None = None
    lr_multiplier: Positive | None = None
    kappa: float | None = None
    batch: Annotated[int, Field(gt=0)] | None = None
    params: Annotated[int, Field(gt=0)]
    non_emb_params: Annotated[int, Field(gt=0)]
    total_params: int | None = None
    data_tokens: Count | None = None
    tokens: Count | None = None
    flops: float | None = None
    optimizer_flops: float | None = None
    final_loss: Positive | None = None
    val_share: float = 1.0
    best_loss: float | None = None
    seconds: float | None = None
    device_hours: float | None = None
    tokens_per_second: float | None = None
    world_size: Annotated[int, Field(gt=0)] = 1
    device: str | None = None
    curve: str
    run: str | None = None
    points: list[dict[str, Any]] | None = None
    settings: dict[str, Any] = {}

    @model_validator(mode="after")
    def _complete(self) -> "RunRow":
        if self.final_loss is not None and not (self.lr and self.tokens and self.flops):
            raise ValueError("lr, tokens and flops must be positive numbers beside a final loss")
        if self.batch is None:  # older ladders have it in their settings only
            micro, steps = ((self.settings.get(key) or 0) for key in ("batch_size", "acc_steps"))
            self.batch = self.settings.get("global_batch") or micro * (steps or 1) * self.world_size or None
        return self


def ladder_file(path: Path) -> Path | None:
    """The file of rows that `path` is, or that the folder `path` has; the packed one where it has no other."""
    return next((file for file in (path / FILE, path / PACKED, path) if file.is_file()), None)


def read_ladder(path: Path) -> list[dict[str, Any]]:
    """The rows of a ladder.jsonl or ladder.jsonl.gz, or of the one in a folder, with paths from here."""
    if (file := ladder_file(path)) is None:
        raise UserError(f"{path}: no {FILE} there; danalab sweep and danalab ladder write one")
    rows = {}
    for row in written_rows(file):
        if row["name"] in rows:
            raise UserError(f"{file}: the run {row['name']} is there twice; a run must count once")
        rows[row["name"]] = _resolve_paths(row, file.parent)
    if not rows:
        raise UserError(f"{file}: no rows")
    return [*rows.values()]


def written_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file as they are written, checked; none where there is no file."""
    rows = []
    for number, line in enumerate(read_text(file).splitlines() if file.is_file() else (), start=1):
        place = f"{file}:{number}"
        rows.append(checked_row(parse_json(line, place), place))
    return rows


def checked_row(row: Any, place: str = "row") -> dict[str, Any]:
    """A row with its defaults filled in. UserError: it is none; says `place` and the first misfit."""
    return validated(RunRow, row, place).model_dump()


def without_points(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows for JSON: without the metrics of packed ones."""
    return [{key: value for key, value in row.items() if key != "points"} for row in rows]


def metrics_of(row: Row) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl, from the row itself where it has them; none where there is no file."""
    return read_rows(Path(row["curve"])) if row.get("points") is None else row["points"]


def validation_points(row: Row) -> list[dict[str, Any]]:
    """The points of a run's curve that have tokens and a validation loss; none where there is no curve."""
    return [point for point in metrics_of(row) if point.get("val/loss") is not None and point.get("tokens")]


def _resolve_paths(row: dict[str, Any], base: Path) -> dict[str, Any]:
    """A row with its paths from here."""
    curve = base / row["curve"]
    run = base / row["run"] if row.get("run") else curve.parent
    return {**row, "settings": portable_settings(row["settings"]), "curve": str(curve), "run": str(run)}


# ---- writing ----
def pack(rows: Iterable[Row], folder: Path) -> Path:
    """Write the `rows` of `read_ladder` with all their metrics into the one file `folder`/ladder.jsonl.gz.

    UserError: no rows, two runs of one name, or the folder holds a ladder with its runs; a packed one is replaced.
    """
    packed: dict[str, dict[str, Any]] = {}
    for row in rows:
        settings = {key: value for key, value in row["settings"].items() if value is not None}
        own = {**row, "run": PACKED, "curve": PACKED, "settings": settings, "points": metrics_of(row)}
        if packed.setdefault(row["name"], own) != own:
            raise UserError(
                f"the run {row['name']} is there twice, with other values; a packed ladder must have one"
            )
    if not packed:
        raise UserError(f"{folder}: no rows to pack into it")
    if (folder / FILE).exists():
        raise UserError(f"{folder} holds a ladder that is not packed; --out must be another folder")
    folder.mkdir(parents=True, exist_ok=True)
    # mtime: the same rows are the same bytes
    write_atomically(
        folder / PACKED, gzip.compress("".join(map(row_line, packed.values())).encode(), mtime=0)
    )
    return folder / PACKED


class RowsFile:
    """ladder.jsonl of a folder whose runs are being trained. A row is only ever replaced by a newer one of its run."""

    def __init__(self, folder: Path):
        self._folder = folder
        packed = written_rows(folder / PACKED)
        self._written = {row["name"]: row for row in (*packed, *written_rows(folder / FILE))}
        self._final: dict[str, dict[str, Any]] = {}  # rows of finished runs, whose folders are not read again

    @property
    def packed(self) -> dict[str, dict[str, Any]]:
        """Name of a run -> its row, of those that were packed: no run folder belongs to them."""
        return {name: row for name, row in self._written.items() if row.get("run") == row["curve"]}

    def update(self, runs: Iterable[Path], labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Write the file again, the rows of these run folders first; returns the rows.

        A run without a folder, or with a damaged one, keeps the row that it had.
        `labels`: name of a run -> its optimizer's name in the row, e.g. that of a variant.
        """
        rows: dict[str, dict[str, Any]] = {}
        for run in runs:
            row = (
                self._final.get(run.name)
                or self._read(run, labels.get(run.name))
                or self._written.get(run.name)
            )
            if row is not None:
                rows[run.name] = row
        self._written = rows | {name: row for name, row in self._written.items() if name not in rows}
        write_atomically(self._folder / FILE, "".join(map(row_line, self._written.values())))
        return [*self._written.values()]

    def _read(self, run: Path, label: str | None) -> dict[str, Any] | None:
        """The row of a run folder; None where there is none, or it is damaged."""
        if not RunFolder(run).config_file.is_file():
            return None
        try:
            row = row_of(run, self._folder)
        except UserError as error:
            log.warning("run %s is damaged: %s", run.name, error)
            return None
        row["opt"] = label or row["opt"]
        if row["status"] == "finished":
            self._final[run.name] = row
        return row


def row_line(value: Row) -> str:
    return json.dumps(finite(value), allow_nan=False) + "\n"
