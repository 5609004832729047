"""Rows of a ladder from exported runs, with sizes and FLOPs by their dimensions."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.ladder.runs.rows import device_hours, save_curve, save_rows
from danalab.ladder.runs.schema import checked_row
from danalab.ladder.wandb.files import PLACE, Export
from danalab.ladder.wandb.keys import SETTINGS, Keys, needed, number, typed
from danalab.scaling.dimensions import Dimensions, explicit_dimensions, flops_per_token, parameter_count
from danalab.scaling.learning_rate import OPTIMIZERS


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
        curve = save_curve(folder, name, (point for point in points if math.isfinite(point["val/loss"])))
        rows.append({"name": name, **row, "run": curve, "curve": curve})
    save_rows(folder, rows)
    return rows


def _row(export: Export, keys: Keys) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(row without names and paths, points of the curve) of a run."""
    found = {name: keys.fixed.get(name, keys.find(name, export.config)) for name in SETTINGS}
    settings: dict[str, Any] = {name: typed(name, value, export) for name, value in found.items() if value is not None}
    opt, lr = (needed(settings, name, export) for name in ("opt", "lr"))
    shape = _shape(settings)
    params, per_token = _size(export, settings, shape)
    points = _points(export, keys, settings, per_token)
    final = keys.find("final_loss", export.summary)
    if final is None:
        final = next(
            (row[key] for row in reversed(export.history) for key in keys.names["final_loss"] if key in row), None
        )
    own_final = final is not None
    losses = [point["val/loss"] for point in points if math.isfinite(point["val/loss"])]
    if not own_final and points:
        final = points[-1]["val/loss"]
    status = _status(export, settings, points, final)
    last = max((point for point in points), key=lambda point: point["step"], default=None)
    tokens = _last_tokens(export, keys, settings, last)
    seconds = _seconds(export, keys, settings, last)
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
        "final_loss_of": "whole validation split" if own_final else "last point of the curve",
        "best_loss": min(losses, default=None),
        "evaluations": len(points),
        "seconds": seconds,
        "device_hours": device_hours(seconds, settings.get("world_size", 1)),
        "world_size": settings.get("world_size", 1),
        "device": settings.get("device"),
        "imported_from": "wandb",
        "settings": {**settings, **({} if shape is None else _dimensions(shape))},
    }, points


def _canonical(opt: str) -> str:
    try:
        return OPTIMIZERS.canonical(opt)
    except UserError:
        return opt  # not an optimizer of danalab: the name is kept


_SHAPE = ("arch", "d_model", "n_layers", "n_heads", "vocab_size", "seq_len")


def _missing_shape(settings: Mapping[str, Any]) -> list[str]:
    return [name for name in _SHAPE if settings.get(name) is None]


def _shape(settings: Mapping[str, Any]) -> Dimensions | None:
    """The model's dimensions, where all are known and the architecture is one of ours."""
    if _missing_shape(settings):
        return None
    try:
        return explicit_dimensions(
            settings["arch"], settings["d_model"], settings["n_layers"], settings["n_heads"], settings.get("head_dim"),
            settings.get("mlp_dim"), settings["vocab_size"], settings.get("n_kv_heads"),
        )  # fmt: skip
    except UserError:
        return None


def _dimensions(shape: Dimensions) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in ("arch", "head_dim", "mlp_dim")}


def _size(export: Export, settings: Mapping[str, Any], shape: Dimensions | None) -> tuple[int, float]:
    """(parameters, FLOPs a token: exact by the dimensions, else 6 a parameter)."""
    if shape is not None:
        return parameter_count(shape), float(flops_per_token(shape, settings["seq_len"]))
    if "params" in settings:
        return settings["params"], 6.0 * settings["params"]
    missing = ", ".join(name.replace("_", "-") for name in _missing_shape(settings)) or "an architecture of danalab's"
    raise UserError(
        f"run {export.name} ({export.where}): its size is unknown: no params, and no {missing}; "
        "--map OURS=KEY names keys, --fixed OURS=VALUE gives values"
    )


def _points(export: Export, keys: Keys, settings: Mapping[str, Any], per_token: float) -> list[dict[str, Any]]:
    """The validation curve by step; of a step logged twice (after a restart) the last row counts."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in export.history:
        loss = number(keys, "val_loss", row)
        if loss is None:
            continue
        step, tokens = number(keys, "step", row), number(keys, "tokens", row)
        a_step = _tokens_per_step(settings)
        if step is None and tokens is not None and a_step:
            step = tokens / a_step
        if step is None:
            known = ", ".join(keys.names["step"])
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
        if (time := number(keys, "time", row)) is not None:
            point["time"] = time
        by_step[round(step)] = point
    return [by_step[step] for step in sorted(by_step)]


def _tokens_per_step(settings: Mapping[str, Any]) -> int | None:
    if not settings.get("seq_len"):
        return None
    if settings.get("global_batch"):
        return settings["global_batch"] * settings["seq_len"]
    if settings.get("batch_size"):
        return settings["batch_size"] * settings.get("acc_steps", 1) * settings["seq_len"]
    return None


def _last_tokens(export: Export, keys: Keys, settings: Mapping[str, Any], last: Mapping[str, Any] | None) -> int | None:
    """Tokens of the whole run: its steps times the tokens per step, logged or by the batch."""
    pace = _tokens_per_step(settings)
    logged = [tokens for row in export.history if (tokens := number(keys, "tokens", row)) is not None]
    if last is not None and last["step"] > 0 and last["tokens"] > 0:
        pace = last["tokens"] / last["step"]
    if pace and settings.get("iterations"):
        return round(pace * settings["iterations"])
    return round(max(logged)) if logged else last["tokens"] if last else None


def _seconds(export: Export, keys: Keys, settings: Mapping[str, Any], last: Mapping[str, Any] | None) -> float | None:
    """Training time: mean time of a step times steps, else the last logged time."""
    paces = [pace for row in export.history if (pace := number(keys, "seconds_per_step", row)) is not None]
    steps = settings.get("iterations") or (last["step"] if last else None)
    if paces and steps:
        return sum(paces) / len(paces) * steps
    times = [time for row in export.history if (time := number(keys, "time", row)) is not None]
    return max(times, default=None)


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
