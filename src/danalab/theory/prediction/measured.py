"""Measured language-model curves beside the theory's shape. A heuristic, and marked as one wherever it is shown.

The theory's curve is limit + A t^-s. With one limit for all optimizers (the same model and data), each curve gives an
exponent s; the theory says by how much that of a logarithmic-time optimizer exceeds its baseline's.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from danalab.errors import UserError
from danalab.files import read_json

BASELINES = ("adamw", "adamw-decaying-wd", "sgd")
"""Optimizers that the others are compared with, the first one found."""
LOG_TIME = ("adana", "dana", "dana-mk4", "dana-star", "dana-star-mk4", "auto-dana")
"""Optimizers whose momentum grows in weight with logarithmic time: those that the theory gives another exponent."""
TRIED = ("lr", "kappa", "delta", "gamma3", "clipsnr", "omega", "weight_decay", "wd_ts", "scheduler", "global_batch")
"""Settings of a ladder's rows by which its trials differ, and the optimizer's own."""


@dataclass(frozen=True)
class Measured:
    """One curve of validation loss."""

    name: str
    opt: str
    size: float
    """Parameters; 0 where unknown."""
    tokens: np.ndarray
    flops: np.ndarray
    loss: np.ndarray
    """Nats a token."""


def read_measured(path: str | Path) -> list[Measured]:
    """Curves of a run folder (metrics.jsonl), of a folder of run folders, or of a ladder.jsonl.

    Of a ladder one curve for each optimizer and size: at its best settings, the mean over their seeds. Trials of other
    learning rates and runs without a final loss say nothing of how an optimizer's best loss falls.

    Raises:
        UserError: none of these; a broken line; no validation losses.
    """
    path = Path(path)
    if path.is_file():
        return _ladder(_rows(path), path)
    if (path / "metrics.jsonl").is_file():
        return [_run(path)]
    if (path / "ladder.jsonl").is_file():
        return read_measured(path / "ladder.jsonl")
    runs = sorted(p.parent for p in path.glob("*/metrics.jsonl")) if path.is_dir() else []
    if not runs:
        raise UserError(f"{path}: neither a run folder, nor a folder of runs, nor a ladder.jsonl")
    return [_run(run) for run in runs]


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise UserError(f"{path}:{number}: not valid JSON: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: no rows")
    return rows


def _points(rows: Iterable[dict[str, Any]], where: str) -> tuple[np.ndarray, ...]:
    points = [
        (row["tokens"], row.get("flops", math.nan), row["val/loss"])
        for row in rows
        if _is_number(row.get("tokens")) and row["tokens"] > 0 and _is_number(row.get("val/loss"))
    ]
    if not points:
        raise UserError(f"{where}: no validation losses (rows with tokens and val/loss)")
    return tuple(np.asarray(points, float).T)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _run(folder: Path) -> Measured:
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    opt = config.get("config", config).get("opt", folder.name)
    summary = read_json(folder / "summary.json") if (folder / "summary.json").is_file() else {}
    size = summary.get("params", 0)
    return Measured(folder.name, opt, float(size or 0), *_points(_rows(folder / "metrics.jsonl"), str(folder)))


def _ladder(rows: Sequence[Mapping[str, Any]], path: Path) -> list[Measured]:
    """The best settings of each optimizer and size over their longest horizon: those of least mean loss among the ones
    with the most seeds."""
    sizes: dict[tuple[str, float], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if _is_number(row.get("final_loss")):
            sizes[_opt(row), float(row.get("params") or 0)].append(row)
    if not sizes:
        raise UserError(f"{path}: no row has a finite final_loss")
    found = []
    for (opt, size), members in sizes.items():
        longest = max(row.get("tokens") or 0 for row in members)
        trials: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for row in members:
            if (row.get("tokens") or 0) == longest:
                trials[_trial(row)].append(row)
        seeds = max(map(len, trials.values()))
        best = min(
            (runs for runs in trials.values() if len(runs) == seeds),
            key=lambda runs: float(np.mean([row["final_loss"] for row in runs])),
        )
        found.append(Measured(f"{opt}, {size:.3g} parameters", opt, size, *_mean([_row(row, path) for row in best])))
    return found


def _opt(row: Mapping[str, Any]) -> str:
    return str(row.get("settings", {}).get("opt", row.get("opt", "?")))


def _trial(row: Mapping[str, Any]) -> str:
    """What the repeats of a trial have in common."""
    settings = {**row.get("settings", {}), **{key: row[key] for key in TRIED if row.get(key) is not None}}
    return json.dumps([settings.get(key) for key in (*TRIED, "optimizer_settings")], default=str)


def _row(row: Mapping[str, Any], path: Path) -> tuple[np.ndarray, ...]:
    """(tokens, FLOPs, loss) of a row's curve, or of its end where it has none."""
    curve = row.get("curve")
    if isinstance(curve, str):
        file = Path(curve) if Path(curve).is_absolute() else path.parent / curve
        if not file.is_file():
            raise UserError(f"{path}: a row has the curve {curve}, which is not there")
        return _points(_rows(file), str(file))
    try:
        final = (float(row["tokens"]), float(row["flops"]), float(row["final_loss"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: a row has neither a curve file nor tokens, flops and final_loss ({error})") from error
    return tuple(np.asarray([x]) for x in final)


def _mean(curves: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """The mean over seeds where all were evaluated; tokens and FLOPs are the first's."""
    tokens, flops, _ = curves[0]
    shared = [i for i, at in enumerate(tokens) if all(np.any(other == at) for other, _, _ in curves)]
    if not shared:
        return curves[0]
    losses = [[loss[other == tokens[i]][0] for i in shared] for other, _, loss in curves]
    return tokens[shared], flops[shared], np.mean(losses, axis=0)


@dataclass(frozen=True)
class ShapeFit:
    """Curves fitted by limit + A x^-s with one limit."""

    limit: float
    exponents: list[float]
    amplitudes: list[float]
    r2: float
    """Of all log residual losses together."""


def fit_shapes(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> ShapeFit:
    """Fit (x, loss) curves by limit + A_i x^-s_i with a common limit between 0 and the smallest loss.

    The limit is the one with the smallest squared relative residual of the losses.

    Raises:
        UserError: a curve with fewer than four points.
    """
    if not curves or any(len(x) < 4 for x, _ in curves):
        raise UserError("a shape needs at least four points in every curve; evaluate more often, or take a longer run")
    smallest = min(float(y.min()) for _, y in curves)

    def lines(limit: float) -> list[tuple[float, float]]:
        fits = [np.polyfit(np.log(x), np.log(y - limit), 1) for x, y in curves]
        return [(-float(f[0]), math.exp(float(f[1]))) for f in fits]

    def cost(limit: float) -> float:
        found = zip(curves, lines(limit), strict=True)
        return sum(float(np.mean((limit + A * x**-s - y) ** 2 / y**2)) for (x, y), (s, A) in found)

    grid = np.linspace(0, 0.995, 60) * smallest
    start = int(np.argmin([cost(g) for g in grid]))
    low, high = grid[max(start - 1, 0)], grid[min(start + 1, len(grid) - 1)]
    limit = float(minimize_scalar(cost, bounds=(low, high), method="bounded").x)  # pyright: ignore[reportAttributeAccessIssue]
    found = lines(limit)
    residual = np.concatenate(
        [np.log(y - limit) - np.log(A * x**-s) for (x, y), (s, A) in zip(curves, found, strict=True)]
    )
    spread = np.concatenate([np.log(y - limit) - np.log(y - limit).mean() for _, y in curves])
    r2 = 1 - float(residual @ residual) / max(float(spread @ spread), 1e-300)
    return ShapeFit(limit, [s for s, _ in found], [A for _, A in found], r2)


@dataclass(frozen=True)
class Comparison:
    """One optimizer against the baseline."""

    name: str
    opt: str
    exponent: float
    ratio: float
    """Exponent over the baseline's."""
    predicted: float | None
    """What the theory says of this ratio; None of optimizers that it says nothing of."""


@dataclass(frozen=True)
class Report:
    """Measured curves, their fit, and the comparison with the theory."""

    curves: list[Measured]
    windows: list[tuple[np.ndarray, np.ndarray]]
    axis: str
    fit: ShapeFit
    baseline: int
    rows: list[Comparison]


def compare_curves(measured: Sequence[Measured], speedup: float, *, skip: float = 0.1) -> Report:
    """Exponents in tokens of the curves of one model size, against the baseline's and the theory's `speedup`.

    Args:
        speedup: predicted ratio of the exponents for logarithmic-time optimizers (`Prediction.speedup`).
        skip: share of each run's tokens that is left out at the beginning (warm-up).
    Raises:
        UserError: no baseline among the curves, too few points.
    """
    windows = [(m.tokens[keep], m.loss[keep]) for m in measured for keep in [m.tokens >= skip * m.tokens[-1]]]
    return _compare(list(measured), windows, "tokens", speedup)


def compare_ladder(measured: Sequence[Measured], exponents: Mapping[str, float]) -> Report:
    """Final losses against compute, one curve an optimizer, against the baseline and the predicted ratio of exponents.

    Args:
        exponents: compute-optimal exponents of "sgd" and "dana-decaying" (`Prediction.compute`).
    Raises:
        UserError: no baseline, fewer than four sizes of an optimizer.
    """
    groups: dict[str, list[Measured]] = {}
    for m in measured:
        groups.setdefault(m.opt, []).append(m)
    merged, windows = [], []
    for opt, members in groups.items():
        finals = np.asarray(sorted((m.flops[-1], m.tokens[-1], m.loss[-1]) for m in members))
        merged.append(Measured(opt, opt, 0.0, finals[:, 1], finals[:, 0], finals[:, 2]))
        windows.append((finals[:, 0], finals[:, 2]))
    return _compare(merged, windows, "FLOPs", exponents["dana-decaying"] / exponents["sgd"])


def _compare(curves: list[Measured], windows: list[tuple[np.ndarray, np.ndarray]], axis: str, speedup: float) -> Report:
    names = [c.opt for c in curves]
    baseline = next((names.index(b) for b in BASELINES if b in names), None)
    if baseline is None:
        raise UserError(
            f"no baseline among {', '.join(names)}; one of {', '.join(BASELINES)} is needed to compare with"
        )
    # Without a unit of its own x^-s has an ill-conditioned amplitude: measure x in the longest curve.
    unit = max(float(x[-1]) for x, _ in windows)
    fit = fit_shapes([(x / unit, y) for x, y in windows])
    base = fit.exponents[baseline]
    rows = [
        Comparison(c.name, c.opt, s, s / base, 1.0 if c.opt in BASELINES else speedup if c.opt in LOG_TIME else None)
        for c, s in zip(curves, fit.exponents, strict=True)
    ]
    return Report(curves, windows, axis, fit, baseline, rows)
