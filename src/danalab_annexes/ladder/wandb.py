"""Runs of Weights & Biases as a ladder: its rows, with sizes and FLOPs by their dimensions, and validation curves.

    NAME.csv          one run's history: a column a metric (`run.history().to_csv`)
    NAME.json         one run's history as a list; or {"name", "config", "summary", "history"}, or a list of such

The format follows from the content. Parts of one run in several files are merged by its name. Keys are those of danalab
and of the trainers that ADana was published with; `--map OURS=THEIRS` names another, `--fixed OURS=VALUE` sets a value.
"""

import contextlib
import csv
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danalab.errors import UserError, first_line, import_extra, nearest
from danalab.files import parse_json, read_text
from danalab.optim.catalogue import OPTIMIZERS
from danalab.scaling.dimensions import Dimensions, explicit_dimensions, flops_per_token, parameter_count
from danalab.sweep.rows import FILE, checked_row, device_hours, save_rows

_TEXT = ("arch", "opt", "scheduler", "attention_gate", "device", "data")
_REAL = ("lr", "lr_multiplier", "weight_decay", "wd_ts", "omega", "kappa", "delta", "clipsnr", "gamma3", "beta1",
         "beta2")  # fmt: skip
_WHOLE = ("seed", "data_seed", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "n_kv_heads", "vocab_size",
          "seq_len", "batch_size", "acc_steps", "global_batch", "iterations", "params", "non_emb_params",
          "world_size")  # fmt: skip
SETTINGS = (*_TEXT, *_REAL, *_WHOLE)
"""Settings of a run, by type."""
METRICS = ("step", "tokens", "time", "seconds_per_step", "val_loss", "final_loss")
"""Values of a history or summary."""
_KEYS = {
    "step": ("step", "iter", "_step", "Step", "trainer/global_step"),
    "tokens": ("tokens", "train/tokens", "tokens_seen"),
    "time": ("time", "_runtime"),
    "seconds_per_step": ("seconds_per_step", "iter_dt"),
    "val_loss": ("val/loss", "eval/loss", "val_loss", "eval_loss", "validation/loss"),
    "final_loss": ("final/val/loss", "final-val/loss", "final_val_loss"),
    "arch": ("arch", "model"),
    "opt": ("opt", "optimizer"),
    "lr": ("lr", "learning_rate", "max_lr"),
    "gamma3": ("gamma3", "gamma_3_factor"),
    "d_model": ("d_model", "n_embd", "hidden_size"),
    "n_layers": ("n_layers", "n_layer", "num_hidden_layers"),
    "n_heads": ("n_heads", "n_head", "num_attention_heads"),
    "head_dim": ("head_dim", "qkv_dim"),
    "mlp_dim": ("mlp_dim", "mlp_hidden_dim", "intermediate_size"),
    "n_kv_heads": ("n_kv_heads", "n_kv_head", "num_key_value_heads"),
    "attention_gate": ("attention_gate", "elementwise_attn_output_gate"),
    "seq_len": ("seq_len", "sequence_length", "block_size"),
    "acc_steps": ("acc_steps", "gradient_accumulation_steps"),
    "iterations": ("iterations", "max_iters", "max_steps"),
    "params": ("params", "total_params"),
    "device": ("device_name", "gpu"),
    "data": ("data", "dataset"),
}
"""Setting or metric -> keys that other trainers have for it, the first one present counts; others have their own."""
PLACE = ""
"""Key of a step's file and line; no metric has this name."""


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


@dataclass(frozen=True)
class Keys:
    """Keys of the exports, by meaning."""

    mapped: Mapping[str, str] = field(default_factory=dict)
    """Setting or metric -> its key, instead of the known ones."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values for all runs, which override their own."""

    def __post_init__(self) -> None:
        given = (("--map", self.mapped, (*METRICS, *SETTINGS)), ("--fixed", self.fixed, SETTINGS))
        for flag, names, allowed in given:
            for name in names:
                if name not in allowed:
                    raise UserError(f"{flag} {name}{nearest(name, allowed)}: known are {', '.join(allowed)}")

    def names(self, name: str) -> Sequence[str]:
        """The keys that a setting or metric may have."""
        return (self.mapped[name],) if name in self.mapped else _KEYS.get(name, (name,))

    def find(self, name: str, values: Mapping[str, Any]) -> Any:
        """The value of the first key present; None without any."""
        return next((values[key] for key in self.names(name) if values.get(key) is not None), None)

    def number(self, name: str, row: Mapping[str, Any]) -> float | None:
        """A metric of a step."""
        if (value := self.find(name, row)) is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            key = next(key for key in self.names(name) if row.get(key) is not None)
            raise UserError(f"{row[PLACE]}, column '{key}': {value!r} is not a number") from None

    def series(self, name: str, export: "Export") -> list[float]:
        """A metric of all steps that have it."""
        return [value for row in export.history if (value := self.number(name, row)) is not None]


def import_runs(exports: Sequence[Export], folder: Path, keys: Keys | None = None) -> list[dict[str, Any]]:
    """Write exported runs as a ladder: `folder`/ladder.jsonl and the validation points of each run; returns rows."""
    if not exports:
        raise UserError("no run in these exports")
    if (folder / "sweep.json").exists():
        raise UserError(f"{folder}: holds a sweep made here; import into another folder")
    taken: dict[str, str] = {}
    made = []
    for export in exports:
        row, points = _row(export, keys or Keys())
        name = re.sub(r"[^A-Za-z0-9._=+-]+", "_", export.name).strip("_") or "run"
        if name in taken:
            raise UserError(f"the runs '{taken[name]}' and '{export.name}' would both be called {name}")
        taken[name] = export.name
        try:
            checked_row({"name": name, **row, "curve": ""})
        except UserError as error:
            raise UserError(f"run {export.name} ({export.where}): {error}") from error
        made.append((name, row, points))
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, row, points in made:
        finite = [point for point in points if math.isfinite(point["val/loss"])]
        rows.append({"name": name, **row, "run": FILE, "curve": FILE, "points": finite})
    save_rows(folder, rows)
    return rows


def _row(export: Export, keys: Keys) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(row without names and paths, points of the curve) of a run."""
    given = {name: keys.fixed.get(name, keys.find(name, export.config)) for name in SETTINGS}
    settings: dict[str, Any] = {name: typed(name, value, export) for name, value in given.items() if value is not None}
    opt, lr = (needed(settings, name, export) for name in ("opt", "lr"))
    shape = _shape(settings)
    params, per_token = _size(export, settings, shape)
    points = _points(export, keys, settings, per_token)
    last = points[-1] if points else {"step": 0, "tokens": 0, "val/loss": None}
    finals = [keys.find("final_loss", values) for values in (*export.history, export.summary)]
    own = [loss for loss in finals if loss is not None]
    final = own[-1] if own else last["val/loss"]
    status = _status(export, settings, points, final)
    steps, logged = settings.get("iterations"), keys.series("tokens", export)
    pace = last["tokens"] / last["step"] if last["step"] > 0 and last["tokens"] > 0 else _tokens_per_step(settings)
    if pace and steps:
        tokens = round(pace * steps)
    else:
        tokens = round(max(logged)) if logged else last["tokens"] if points else None
    paces = keys.series("seconds_per_step", export)
    if paces and (steps or last["step"]):
        seconds = sum(paces) / len(paces) * (steps or last["step"])
    else:
        seconds = max(keys.series("time", export), default=None)
    ended = float(final) if status == "finished" and final is not None and math.isfinite(final) and tokens else None
    return {
        "status": status,
        "arch": settings.get("arch"),
        "opt": _canonical(str(opt)),
        "seed": settings.get("seed", 0),
        "lr": lr,
        "kappa": settings.get("kappa"),
        "lr_multiplier": settings.get("lr_multiplier"),
        "params": params,
        "non_emb_params": settings.get("non_emb_params")
        or (12 * shape.d_model**2 * shape.n_layers if shape else params),
        "tokens": tokens,
        "flops": None if tokens is None else per_token * tokens,
        "final_loss": ended,
        "final_loss_of": "whole validation split" if own else "last point of the curve",
        "best_loss": min((point["val/loss"] for point in points if math.isfinite(point["val/loss"])), default=None),
        "evaluations": len(points),
        "seconds": seconds,
        "device_hours": device_hours(seconds, settings.get("world_size", 1)),
        "world_size": settings.get("world_size", 1),
        "device": settings.get("device"),
        "imported_from": "wandb",
        "settings": settings
        | ({name: getattr(shape, name) for name in ("arch", "head_dim", "mlp_dim")} if shape else {}),
    }, points


def _canonical(opt: str) -> str:
    with contextlib.suppress(UserError):
        return OPTIMIZERS.canonical(opt)
    return opt  # not an optimizer of danalab: the name is kept


_SHAPE = ("arch", "d_model", "n_layers", "n_heads", "vocab_size", "seq_len")


def _shape(settings: Mapping[str, Any]) -> Dimensions | None:
    """The model's dimensions, where all are known and the architecture is one of danalab's."""
    if any(settings.get(name) is None for name in _SHAPE):
        return None
    try:
        return explicit_dimensions(
            settings["arch"], settings["d_model"], settings["n_layers"], settings["n_heads"], settings.get("head_dim"),
            settings.get("mlp_dim"), settings["vocab_size"], settings.get("n_kv_heads"),
        )  # fmt: skip
    except UserError:
        return None


def _size(export: Export, settings: Mapping[str, Any], shape: Dimensions | None) -> tuple[int, float]:
    """(parameters, FLOPs a token: exact by the dimensions, else 6 a parameter)."""
    if shape is not None:
        return parameter_count(shape), float(flops_per_token(shape, settings["seq_len"]))
    if "params" in settings:
        return settings["params"], 6.0 * settings["params"]
    missing = [name.replace("_", "-") for name in _SHAPE if settings.get(name) is None]
    raise UserError(
        f"run {export.name} ({export.where}): its size is unknown: no params, and no "
        f"{', '.join(missing) or 'architecture of danalab'}; --map OURS=KEY names keys, --fixed OURS=VALUE gives values"
    )


def _points(export: Export, keys: Keys, settings: Mapping[str, Any], per_token: float) -> list[dict[str, Any]]:
    """The validation curve by step; of a step logged twice (after a restart) the last row counts."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in export.history:
        loss = keys.number("val_loss", row)
        if loss is None:
            continue
        step, tokens = keys.number("step", row), keys.number("tokens", row)
        a_step = _tokens_per_step(settings)
        if step is None and tokens is not None and a_step:
            step = tokens / a_step
        if step is None:
            known = ", ".join(keys.names("step"))
            raise UserError(f"{row[PLACE]}: a validation loss at no step (keys {known}); --map step=KEY names it")
        if tokens is None and a_step:
            tokens = step * a_step
        if tokens is None:
            raise UserError(
                f"{row[PLACE]}: no tokens, and none that follow from the step: --map tokens=KEY, or --fixed "
                "batch-size=... seq-len=... (acc-steps, global-batch)"
            )
        point = {"step": round(step), "tokens": round(tokens), "val/loss": loss}
        if tokens:
            point["flops"] = per_token * tokens
        if (time := keys.number("time", row)) is not None:
            point["time"] = time
        by_step[round(step)] = point
    return [by_step[step] for step in sorted(by_step)]


def _tokens_per_step(settings: Mapping[str, Any]) -> int | None:
    sequences = settings.get("global_batch") or settings.get("batch_size", 0) * settings.get("acc_steps", 1)
    return sequences * settings.get("seq_len", 0) or None


def _status(export: Export, settings: Mapping[str, Any], points: Sequence[Mapping[str, Any]], final: Any) -> str:
    """finished, unfinished or nonfinite: by the state that W&B gives, else by the last step."""
    if isinstance(final, float) and not math.isfinite(final):
        return "nonfinite"
    state = str(export.summary.get("state") or export.summary.get("State") or "").lower()
    if state:
        return "finished" if state == "finished" else "unfinished"
    steps = [point["step"] for point in points]
    if settings.get("iterations") and steps:
        # The published trainer evaluates its last step on the whole split, not as a point of the curve.
        gap = max((b - a for a, b in itertools.pairwise(steps)), default=0)
        return "finished" if max(steps) + gap >= settings["iterations"] else "unfinished"
    return "finished" if final is not None else "unfinished"


def typed(name: str, value: Any, export: Export) -> Any:
    """A setting with its type."""
    if name in _TEXT:
        return value
    kind = float if name in _REAL else int
    try:
        number = float(value)
        if kind is float or number == int(number):
            return kind(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"{export.where or export.name}: run {export.name}: {name} is {value!r}; it must be a number")


def needed(settings: Mapping[str, Any], name: str, export: Export) -> Any:
    """A setting that every row needs."""
    if name not in settings:
        shown, keys = name.replace("_", "-"), ", ".join(_KEYS.get(name, (name,)))
        raise UserError(
            f"run {export.name} ({export.where}): its configuration has none of the keys {keys}; "
            f"--map {shown}=KEY names another, --fixed {shown}=VALUE gives the value; the configurations come from a "
            "JSON of the runs"
        )
    return settings[name]


def read_exports(paths: Sequence[Path]) -> list[Export]:
    """All runs of files and folders of files, by name."""
    runs: dict[str, Export] = {}
    for path in paths:
        inside = sorted(each for end in ("csv", "json") for each in path.rglob(f"*.{end}"))
        if path.is_dir() and not inside:
            raise UserError(f"{path}: no .csv or .json file in the folder")
        for file in inside if path.is_dir() else [path]:
            for export in _read(file):
                run = runs.setdefault(export.name, export)
                if run is not export:
                    run.config |= export.config
                    run.summary |= export.summary
                    run.history += export.history
    return list(runs.values())


def read_api(path: str, filters: Mapping[str, Any] | None = None) -> list[Export]:
    """All runs of a project (entity/project), over the network; filters as in the API, {"group": "enoki"}."""
    wandb = import_extra("wandb", "--api")
    try:
        return _unique([
            _run(
                {"id": run.id, "name": run.name, "state": run.state, "config": dict(run.config),
                 "summary": dict(run.summary), "history": list(run.scan_history())},
                f"{path}/{run.id}",
            )
            for run in wandb.Api().runs(path, filters=dict(filters or {}))
        ])  # fmt: skip
    except (wandb.Error, OSError, ValueError) as error:
        raise UserError(f"--api {path}: {first_line(error)}") from error


def _read(file: Path) -> list[Export]:
    text = read_text(file).removeprefix("\ufeff")
    if not text.strip():
        raise UserError(f"{file}: empty")
    if file.suffix == ".csv":
        return _of_csv(file, text)
    if file.suffix != ".json":
        raise UserError(f"{file}: .csv or .json is expected")
    loaded = parse_json(text, file)
    if isinstance(loaded, dict) and isinstance(loaded.get("runs"), list):
        loaded = loaded["runs"]
    runs = loaded if isinstance(loaded, list) else [loaded]
    if runs and all(isinstance(run, dict) and {"config", "summary", "history"} & set(run) for run in runs):
        return _unique([_run(run, str(file)) for run in runs])
    if isinstance(loaded, list):
        return [_history(file.stem, loaded, str(file))]
    raise UserError(f"{file}: neither a history (a list of steps) nor runs (with name, config, summary, history)")


def _run(run: Mapping[str, Any], where: str) -> tuple[str, Export]:
    """(id, run) of an object with name, config, summary and history."""
    name = str(run.get("name") or run.get("display_name") or run.get("id") or Path(where).stem)
    config, summary, history = run.get("config") or {}, run.get("summary") or {}, run.get("history") or []
    if not isinstance(config, dict) or not isinstance(summary, dict) or not isinstance(history, list):
        raise UserError(f"{where}: run {name}: config and summary are mappings, history is a list of steps")
    state = {"state": run["state"]} if "state" in run else {}
    export = _history(name, history, where)
    export.config, export.summary = _unwrapped(config), {**state, **summary}
    return str(run.get("id") or ""), export


def _history(name: str, rows: Sequence[Any], where: str) -> Export:
    steps = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise UserError(f"{where}: step {number} of the history is {type(row).__name__}, an object is expected")
        present = {key: value for key, value in row.items() if value is not None}
        steps.append({**present, PLACE: f"{where}, step {number} of the history"})
    return Export(name, history=steps, where=where)


def _unwrapped(config: Mapping[str, Any]) -> dict[str, Any]:
    """The plain configuration; wandb wraps each value as {"value": ..., "desc": ...}."""
    kept = {key: value for key, value in config.items() if key not in ("wandb_version", "_wandb")}
    wrapped = [
        key for key, value in kept.items() if isinstance(value, dict) and {"value"} <= {*value} <= {"value", "desc"}
    ]
    return kept | {key: kept[key]["value"] for key in wrapped}


def _unique(runs: Sequence[tuple[str, Export]]) -> list[Export]:
    """Runs with unique names: W&B allows duplicates, which get their id added."""
    names = [export.name for _, export in runs]
    for number, (id_, export) in enumerate(runs):
        if names.count(export.name) > 1:
            export.name = f"{export.name}-{id_ or number}"
    return [export for _, export in runs]


def _of_csv(file: Path, text: str) -> list[Export]:
    lines: list[tuple[int, dict[str, Any]]] = []
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        heads = next(reader)
        if twice := [head for head in heads if heads.count(head) > 1]:
            raise UserError(f"{file}:1: the column '{twice[0]}' appears twice")
        for cells in reader:
            if cells and len(cells) != len(heads):
                raise UserError(f"{file}:{reader.line_num}: {len(cells)} fields, the heading has {len(heads)}")
            if cells:
                lines.append((reader.line_num, dict(zip(heads, cells, strict=True))))
    except csv.Error as error:
        raise UserError(f"{file}:{reader.line_num}: not CSV: {error}") from error
    if not lines:
        raise UserError(f"{file}: a heading and no line below it")
    rows = [{**{key: _value(cell) for key, cell in row.items() if cell}, PLACE: f"{file}:{at}"} for at, row in lines]
    return [Export(file.stem, history=rows, where=str(file))]


def _value(cell: str) -> Any:
    try:
        number = float(cell)
    except ValueError:
        return {"true": True, "false": False}.get(cell.lower(), cell)
    return int(number) if math.isfinite(number) and number == int(number) and "." not in cell else number
