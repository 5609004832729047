"""ladder.jsonl: one row per run, from run folders; ladder.jsonl.gz: the same with the runs' metrics inside.

Fits, tables and figures read both. A packed ladder is one file that needs no run folder:

name, opt, arch, seed, lr     the run; `settings` has all of its settings
batch                         sequences per step
params, non_emb_params, total_params    as built, and by the size law that learning rates are fitted against
tokens, flops, seconds, tokens_per_second, device_hours
optimizer_flops               of the optimizer's own matrix products; `flops` are the model's
optimizer_settings            all settings of the optimizer: its defaults when the run was made, and what was given
data_tokens, entropy          of the training data; exact entropy [nats/token] of a generated language, else null
final_loss                    [nats/token] over the share val_share of the validation split, mostly all of it
best_loss                     least on the fixed windows
run, curve                    the run folder and its metrics.jsonl, relative to the file
points                        only packed: the rows of metrics.jsonl, unchanged; run and curve are the packed file

Rows hold no absolute paths, so that a ladder can be moved, committed and read elsewhere.
"""

import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from danalab.data.formats.shards import Manifest
from danalab.errors import UserError
from danalab.files import finite, read_text, write_atomically
from danalab.models.config import ModelConfig
from danalab.scaling.optimizer_flops import optimizer_flops
from danalab.scaling.optimizers import FACTS, is_address
from danalab.sweep.grid import is_number, portable_settings
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.run.schemas import Row

log = logging.getLogger(__name__)

FILE = "ladder.jsonl"
PACKED = f"{FILE}.gz"


def row_of(run: Path, base: Path) -> dict[str, Any]:
    """The row of a run folder, finished or not."""
    folder = RunFolder(run)
    record = folder.read_config()
    config, plan, summary = record["config"], record["plan"], folder.read_summary() or {}
    dataset = record.get("dataset", {})
    losses = [row["val/loss"] for row in read_rows(folder.metrics_file) if "val/loss" in row]
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
        "data_tokens": dataset.get("tokens"),
        "entropy": _entropy(Path(dataset.get("path", ""))),
        "non_emb_params": plan["non_emb_params"],
        "total_params": plan["total_params"],
        "tokens": summary.get("tokens"),
        "flops": summary.get("flops"),
        "optimizer_flops": optimizer_flops_of(config["opt"], config, summary.get("step")),
        "optimizer_settings": optimizer_settings_of(config["opt"], config),
        "final_loss": finite(summary.get("val/loss")) if summary.get("status") == "finished" else None,
        "val_share": summary.get("val/share", 1.0),
        "best_loss": min(losses, default=None),
        "evaluations": len(losses),
        "seconds": summary.get("time"),
        "device_hours": device_hours(summary.get("time"), record.get("world_size", 1)),
        "tokens_per_second": summary.get("tokens_per_second"),
        "world_size": record.get("world_size", 1),
        "device": record.get("device"),
        "curve": os.path.relpath(folder.metrics_file, base),
        "settings": portable_settings(config),
    }


def is_usable(row: Mapping[str, Any]) -> bool:
    """Whether a run ended with a finite loss. Others are counted and shown, not fitted."""
    return row["final_loss"] is not None and math.isfinite(row["final_loss"])


def has_diverged(row: Mapping[str, Any]) -> bool:
    """Whether the run ended by a loss that is not finite."""
    return not is_usable(row) and row["status"] in ("nonfinite", "finished")


def shape_of(settings: Mapping[str, Any]) -> ModelConfig:
    """The model that a row's settings describe. UserError or TypeError: they make none."""
    names = [each.name for each in fields(ModelConfig) if settings.get(each.name) is not None]
    return ModelConfig(**{name: settings[name] for name in names})


def optimizer_flops_of(opt: str, settings: Mapping[str, Any], steps: int | None) -> float | None:
    """FLOPs of the matrix products of a run's optimizer in its first steps; None: they are not known.

    `opt`: where the settings have none, as in rows of other programs.
    """
    if is_address(opt := settings.get("opt") or opt) or opt not in FACTS:
        return None
    if not FACTS[opt].orthogonalises:
        return 0.0
    if not steps:
        return None
    try:
        return optimizer_flops(opt, shape_of(settings), settings.get("optimizer_settings") or {}, int(steps))
    except (UserError, TypeError, ValueError, AttributeError, ArithmeticError):
        return None


def optimizer_settings_of(opt: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """An optimizer's settings in a run, defaults too; None: it is none of danalab's. `opt`: as above."""
    if is_address(opt := settings.get("opt") or opt) or opt not in FACTS:
        return None
    from danalab.optim import settings_of  # imports torch

    defaults = {name: told.default for name, told in settings_of(opt).items()}
    given = {**settings, **(settings.get("optimizer_settings") or {})}
    known = defaults | {name: value for name, value in given.items() if name in defaults and value is not None}
    for place, name in enumerate(("beta1", "beta2")):
        if "betas" in known and given.get(name) is not None:
            known["betas"] = [*known["betas"][:place], given[name], *known["betas"][place + 1 :]]
    return {name: [*value] if isinstance(value, tuple) else value for name, value in known.items() if value is not None}


def _entropy(data: Path) -> float | None:
    """Exact entropy of a generated language [nats/token], from its manifest; None for other data."""
    try:
        return Manifest.read(data).source.get("entropy") if (data / "manifest.json").is_file() else None
    except UserError as error:  # the data were damaged after the run, whose losses remain
        log.warning("%s", error)
        return None


def device_hours(seconds: float | None, world_size: int) -> float | None:
    """Hours of all devices together, or None where the time is unknown."""
    return None if seconds is None else seconds * world_size / 3600


class RowsFile:
    """ladder.jsonl of a folder whose runs are being trained. A row is only ever replaced by a newer one of its run."""

    def __init__(self, folder: Path):
        self._folder = folder
        packed, own = written_rows(folder / PACKED), written_rows(folder / FILE)
        self._written = {str(row["name"]): row for row in (*packed, *own)}
        self._final: dict[str, dict[str, Any]] = {}
        """Rows of finished runs that were read from their folders; they are not read again."""
        self._warned: set[str] = set()

    @property
    def packed(self) -> dict[str, dict[str, Any]]:
        """Name of a run -> its row, of those that were packed or imported: no run folder belongs to them."""
        return {name: row for name, row in self._written.items() if row.get("run") == row["curve"]}

    def update(self, runs: Iterable[Path], labels: Mapping[str, str] = {}) -> list[dict[str, Any]]:
        """Write the file again, the rows of these run folders first; returns the rows.

        A run that has no folder, a damaged one, or one where it is being made again keeps the row that it had.
        `labels`: name of a run -> its optimizer's name in the row, e.g. that of a variant.
        """
        rows: dict[str, dict[str, Any]] = {}
        missing = []
        for run in runs:
            old = self._written.get(run.name)
            new = self._final.get(run.name) or self._read(run, labels.get(run.name))
            if new is None and old is not None:
                missing.append(run.name)
            if old is not None and (new is None or (new["status"] == "unfinished" != old.get("status"))):
                rows[run.name] = old
            elif new is not None:
                rows[run.name] = new
        rows = {**rows, **{name: row for name, row in self._written.items() if name not in rows}}
        if said := [name for name in missing if name not in self._warned]:
            log.warning(
                "%s: %d of %d runs cannot be read from %s any more; their rows stay as they are: %s",
                self._folder / FILE, len(said), len(rows), self._folder / "runs", ", ".join(said),
            )  # fmt: skip
            self._warned.update(said)
        self._written = rows
        save_rows(self._folder, rows.values())
        return list(rows.values())

    def _read(self, run: Path, label: str | None) -> dict[str, Any] | None:
        """The row of a run folder; None where there is none, or it is damaged."""
        if not RunFolder(run).config_file.is_file():
            return None
        try:
            row = row_of(run, self._folder)
        except UserError as error:
            if run.name not in self._warned:
                log.warning("run %s is damaged: %s", run.name, error)
            if run.name not in self._written:
                self._warned.add(run.name)
            return None
        row["opt"] = label or row["opt"]
        if row["status"] == "finished":
            self._final[run.name] = row
        return row


def written_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file as they are written; none where there is no file."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(read_text(file).splitlines() if file.is_file() else (), start=1):
        try:
            row = json.loads(line)
            rows.append({key: checked_row(row)[key] for key in ("name", "batch")} | row)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}:{number}: not a row of a ladder: {error}; repair or move the file") from error
    if not rows and file.name == PACKED and file.is_file():  # a copy that failed; its runs would be made again
        raise UserError(f"{file} has no rows; it must be a whole packed ladder")
    return rows


def save_rows(folder: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows to `folder`/ladder.jsonl; returns the file."""
    file = folder / FILE
    write_atomically(file, "".join(map(row_line, rows)))
    return file


def row_line(value: Mapping[str, Any]) -> str:
    return json.dumps(finite(value), allow_nan=False) + "\n"


def _as_integer(value: Any) -> Any:
    """JSON of other programs has 1e5 for 100000."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _file_name(value: str) -> str:
    """Names become names of files: none may lead out of its folder."""
    if value in ("", ".", "..") or PurePath(value).name != value or not value.isprintable() or "\\" in value:
        raise ValueError("it must be the name of a file without a folder")
    return value


FileName = Annotated[str, Field(max_length=200), AfterValidator(_file_name)]
Count = Annotated[int, BeforeValidator(_as_integer), Field(ge=0, le=10**18)]
Size = Annotated[int, BeforeValidator(_as_integer), Field(gt=0, le=10**15)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Positive = Annotated[float, Field(gt=0, le=1e300)]
NotNegative = Annotated[float, Field(ge=0, le=1e300)]


def _checked_points(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points as they are: the schema would make floats of integers."""
    _POINTS.validate_python(points)
    return points


_POINTS: TypeAdapter[Any] = TypeAdapter(list[Row])  # pyright: ignore[reportInvalidTypeForm]

_OPTIMIZERS_NUMBERS = ("gamma3", "beta1", "beta2", "momentum")  # settings of optimizers that figures take as numbers


class RunRow(BaseModel):
    """One run. Further fields are kept as they are."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=True)

    name: FileName
    opt: Annotated[str, Field(min_length=1, max_length=100)]
    arch: str | None = None
    status: str = "finished"
    seed: Annotated[int, BeforeValidator(_as_integer)] = 0
    lr: Positive | None = None
    lr_multiplier: Positive | None = None
    kappa: Number | None = None
    batch: Size | None = None
    params: Size
    non_emb_params: Size
    data_tokens: Count | None = None
    entropy: NotNegative | None = None
    tokens: Count | None = None
    flops: NotNegative | None = None
    optimizer_flops: NotNegative | None = None
    """None: the optimizer is none of danalab's, or the settings do not give its matrices."""
    final_loss: float | None = None
    """Not finite: the run diverged."""
    val_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the validation split that `final_loss` is over."""
    best_loss: float | None = None
    seconds: NotNegative | None = None
    device_hours: NotNegative | None = None
    tokens_per_second: NotNegative | None = None
    world_size: Size = 1
    device: str | None = None
    curve: str
    run: str | None = None
    points: Annotated[list[dict[str, Any]], AfterValidator(_checked_points)] | None = None
    settings: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, row: Any) -> Any:
        """Older ladders leave some fields out."""
        if not isinstance(row, dict) or "curve" not in row or "params" not in row:
            return row
        defaults = {"name": PurePath(str(row["curve"])).stem, "non_emb_params": row["params"]}
        optional = ("settings", "world_size", "status", "seed")  # None stands for the default
        return {**defaults, **{key: value for key, value in row.items() if value is not None or key not in optional}}

    @field_validator("final_loss")
    @classmethod
    def _is_a_loss(cls, loss: float | None) -> float | None:
        if loss is not None and (loss <= 0 or (math.isfinite(loss) and not 1e-9 < loss < 1e9)):
            raise ValueError("it must be a positive number of nats/token")
        return loss

    @field_validator("settings")
    @classmethod
    def _numbers_are_numbers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for key, value in settings.items():
            if (is_number(key) or key in _OPTIMIZERS_NUMBERS) and not isinstance(value, (int, float, type(None))):
                raise ValueError(f"where {key} is {value!r}; it must be a number")
        return settings

    @model_validator(mode="after")
    def _complete(self) -> "RunRow":
        """Older ladders have the batch in their settings only, and do not count the optimizer's products."""
        if self.batch is None:
            micro, steps = ((self.settings.get(key) or 0) for key in ("batch_size", "acc_steps"))
            batch = self.settings.get("global_batch") or micro * (steps or 1) * self.world_size
            self.batch = int(batch) if 1 <= batch <= 10**15 else None
        if self.optimizer_flops is None and self.tokens:
            steps = self.settings.get("iterations")
            a_step = (self.batch or 0) * (self.settings.get("seq_len") or 0)
            self.optimizer_flops = optimizer_flops_of(
                self.opt, self.settings, steps or (a_step and self.tokens // a_step)
            )
        return self

    @model_validator(mode="after")
    def _has_what_fits_need(self) -> "RunRow":
        if self.final_loss is not None and math.isfinite(self.final_loss):
            for key in ("lr", "tokens", "flops"):
                if not getattr(self, key):
                    raise ValueError(
                        f"{key} is {getattr(self, key)!r} beside a final loss; it must be a positive number"
                    )
        return self


def checked_row(row: Any) -> dict[str, Any]:
    """A row of ladder.jsonl with its defaults filled in."""
    try:
        return RunRow.model_validate(row).model_dump()
    except ValidationError as error:
        raise UserError(_first_problem(error)) from error


def _first_problem(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    derived = ("name", "non_emb_params")
    missing = [each["loc"][0] for each in problems if each["type"] == "missing" and each["loc"][0] not in derived]
    if missing:
        return f"no {', '.join(map(str, missing))}"
    first = problems[0]
    kind, message = first["type"], first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return "an object is expected" if kind == "model_type" else message
    if kind in ("int_type", "float_type"):
        message = "it must be a number"
    shown = repr(first["input"])
    return f"{'.'.join(map(str, first['loc']))} is {shown if len(shown) < 80 else shown[:77] + '...'}; {message}"
