"""Rows of a ladder from exported runs: which of their keys means what, and what follows from the dimensions.

The defaults are the keys of danalab itself and of the trainers that ADana was published with (n_embd, sequence_length,
gamma_3_factor, final-val/loss, ...). `--map OURS=THEIRS` names another key, `--fixed OURS=VALUE` says what no key does.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danalab.errors import UserError, nearest
from danalab.ladder.rows import device_hours, save_curve, save_rows
from danalab.ladder.wandb_files import PLACE, Export
from danalab.scaling.dimensions import Dimensions, explicit_dimensions, flops_per_token, parameter_count
from danalab.scaling.learning_rate import OPTIMIZERS

METRICS = {
    "step": ("step", "iter", "_step", "Step", "trainer/global_step"),
    "tokens": ("tokens", "train/tokens", "tokens_seen"),
    "time": ("time", "_runtime"),
    "seconds_per_step": ("seconds_per_step", "iter_dt"),
    "val_loss": ("val/loss", "eval/loss", "val_loss", "eval_loss", "validation/loss"),
    "final_loss": ("final/val/loss", "final-val/loss", "final_val_loss"),
}
"""What a history or a summary says -> keys for it, the first that is there."""
SETTINGS = {
    "arch": ("arch", "model"),
    "opt": ("opt", "optimizer"),
    "seed": ("seed",),
    "data_seed": ("data_seed",),
    "lr": ("lr", "learning_rate", "max_lr"),
    "lr_multiplier": ("lr_multiplier",),
    "weight_decay": ("weight_decay",),
    "wd_ts": ("wd_ts",),
    "omega": ("omega",),
    "kappa": ("kappa",),
    "delta": ("delta",),
    "clipsnr": ("clipsnr",),
    "gamma3": ("gamma3", "gamma_3_factor"),
    "beta1": ("beta1",),
    "beta2": ("beta2",),
    "scheduler": ("scheduler",),
    "d_model": ("d_model", "n_embd", "hidden_size"),
    "n_layers": ("n_layers", "n_layer", "num_hidden_layers"),
    "n_heads": ("n_heads", "n_head", "num_attention_heads"),
    "head_dim": ("head_dim", "qkv_dim"),
    "mlp_dim": ("mlp_dim", "mlp_hidden_dim", "intermediate_size"),
    "n_kv_heads": ("n_kv_heads", "n_kv_head", "num_key_value_heads"),
    "attention_gate": ("attention_gate", "elementwise_attn_output_gate"),
    "vocab_size": ("vocab_size",),
    "seq_len": ("seq_len", "sequence_length", "block_size"),
    "batch_size": ("batch_size",),
    "acc_steps": ("acc_steps", "gradient_accumulation_steps"),
    "global_batch": ("global_batch",),
    "iterations": ("iterations", "max_iters", "max_steps"),
    "params": ("params", "total_params"),
    "non_emb_params": ("non_emb_params",),
    "world_size": ("world_size",),
    "device": ("device_name", "gpu"),
    "data": ("data", "dataset"),
}
"""What a configuration says -> keys for it."""
_WHOLE = (
    *("seed", "data_seed", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "n_kv_heads", "vocab_size"),
    *("seq_len", "batch_size", "acc_steps", "global_batch", "iterations", "params", "non_emb_params", "world_size"),
)
_REAL = (
    "lr",
    "lr_multiplier",
    "weight_decay",
    "wd_ts",
    "omega",
    "kappa",
    "delta",
    "clipsnr",
    "gamma3",
    "beta1",
    "beta2",
)


@dataclass(frozen=True)
class Keys:
    """Which keys of the exports mean what."""

    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: {**METRICS, **SETTINGS})
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values that hold for all runs, whatever they say."""

    @classmethod
    def of(cls, mapped: Mapping[str, str], fixed: Mapping[str, Any]) -> Keys:
        """The defaults, with these in their place.

        Raises:
            UserError: a name that isn't one of ours.
        """
        known = {**METRICS, **SETTINGS}
        for what, names, allowed in (("--map", mapped, known), ("--fixed", fixed, SETTINGS)):
            for name in names:
                if name not in allowed:
                    raise UserError(f"{what} {name}{nearest(name, allowed)}: known are {', '.join(allowed)}")
        return cls({**known, **{name: (key,) for name, key in mapped.items()}}, fixed)

    def find(self, name: str, values: Mapping[str, Any]) -> Any:
        """The value of the first key that is there; None where none is."""
        return next((values[key] for key in self.names[name] if values.get(key) is not None), None)


def import_runs(exports: Sequence[Export], folder: Path, keys: Keys | None = None) -> list[dict[str, Any]]:
    """Write exported runs as a ladder: `folder`/ladder.jsonl and the validation points of each run. Returns the rows.

    Raises:
        UserError: something that a row needs is nowhere; names the run, the key and the way out. Or the folder holds a
            ladder that was made here.
    """
    if not exports:
        raise UserError("no run in these exports")
    if (folder / "sweep.json").exists():
        raise UserError(f"{folder}: holds a sweep of its own; import into another folder")
    taken: dict[str, str] = {}
    made = []
    for export in exports:
        row, points = _row(export, keys or Keys())
        name = re.sub(r"[^A-Za-z0-9._=+-]+", "_", export.name).strip("_") or "run"
        if name in taken:
            raise UserError(f"the runs '{taken[name]}' and '{export.name}' would both be called {name}")
        taken[name] = export.name
        made.append((name, row, points))
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, row, points in made:
        curve = save_curve(folder, name, points)
        rows.append({"name": name, **row, "run": curve, "curve": curve})
    save_rows(folder, rows)
    return rows


def _row(export: Export, keys: Keys) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(row without names and paths, points of the curve) of a run."""
    said = {name: keys.fixed.get(name, keys.find(name, export.config)) for name in SETTINGS}
    settings: dict[str, Any] = {name: _typed(name, value, export) for name, value in said.items() if value is not None}
    opt, lr = (_needed(settings, name, export) for name in ("opt", "lr"))
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


def _typed(name: str, value: Any, export: Export) -> Any:
    """A setting as a number where it is one.

    Raises:
        UserError: it isn't.
    """
    kind = int if name in _WHOLE else float if name in _REAL else None
    if kind is None:
        return value
    try:
        found = float(value)
        if kind is float or found == int(found):
            return kind(found)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"{export.where or export.name}: run {export.name}: {name} is {value!r}, a number is expected")


def _needed(settings: Mapping[str, Any], name: str, export: Export) -> Any:
    if name not in settings:
        shown = name.replace("_", "-")
        raise UserError(
            f"run {export.name} ({export.where}): its configuration has none of the keys {', '.join(SETTINGS[name])}; "
            f"--map {shown}=KEY names another, --fixed {shown}=VALUE gives the value; the configurations come from a "
            "table or JSON of the runs"
        )
    return settings[name]


def _canonical(opt: str) -> str:
    try:
        return OPTIMIZERS.canonical(opt)
    except UserError:
        return opt  # one that danalab does not have: a name like any other here


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
        f"run {export.name} ({export.where}): its size is not known: no params, and no {missing}; "
        "--map OURS=KEY names keys, --fixed OURS=VALUE gives values"
    )


def _points(export: Export, keys: Keys, settings: Mapping[str, Any], per_token: float) -> list[dict[str, Any]]:
    """The validation curve, in the order of steps; a step that was logged again after a restart counts once."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in export.history:
        loss = _number(keys, "val_loss", row)
        if loss is None:
            continue
        step, tokens = _number(keys, "step", row), _number(keys, "tokens", row)
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
        if (time := _number(keys, "time", row)) is not None:
            point["time"] = time
        by_step[round(step)] = point
    return [by_step[step] for step in sorted(by_step)]


def _number(keys: Keys, name: str, row: Mapping[str, Any]) -> float | None:
    """A value of a step.

    Raises:
        UserError: it isn't a number; names its line and column.
    """
    for key in keys.names[name]:
        value = row.get(key)
        if value is None:
            continue
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UserError(f"{row[PLACE]}, column '{key}': {value!r} is not a number") from None
    return None


def _tokens_per_step(settings: Mapping[str, Any]) -> int | None:
    if not settings.get("seq_len"):
        return None
    if settings.get("global_batch"):
        return settings["global_batch"] * settings["seq_len"]
    if settings.get("batch_size"):
        return settings["batch_size"] * settings.get("acc_steps", 1) * settings["seq_len"]
    return None


def _last_tokens(export: Export, keys: Keys, settings: Mapping[str, Any], last: Mapping[str, Any] | None) -> int | None:
    """Tokens of the whole run: its steps at the pace that was logged or follows from the batch."""
    pace = _tokens_per_step(settings)
    logged = [tokens for row in export.history if (tokens := _number(keys, "tokens", row)) is not None]
    if last is not None and last["step"] > 0 and last["tokens"] > 0:
        pace = last["tokens"] / last["step"]
    if pace and settings.get("iterations"):
        return round(pace * settings["iterations"])
    return round(max(logged)) if logged else last["tokens"] if last else None


def _seconds(export: Export, keys: Keys, settings: Mapping[str, Any], last: Mapping[str, Any] | None) -> float | None:
    """Training time: mean time of a step times steps, else what the clock said at the end."""
    paces = [pace for row in export.history if (pace := _number(keys, "seconds_per_step", row)) is not None]
    steps = settings.get("iterations") or (last["step"] if last else None)
    if paces and steps:
        return sum(paces) / len(paces) * steps
    times = [time for row in export.history if (time := _number(keys, "time", row)) is not None]
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
        # The published trainer evaluates its last step on the whole split, which is no point of the curve.
        gap = max((b - a for a, b in itertools.pairwise(steps)), default=0)
        return "finished" if max(steps) + gap >= settings["iterations"] else "unfinished"
    return "finished" if final is not None else "unfinished"
