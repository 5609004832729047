"""Runs side by side: final losses, the compute at which each reached the baseline's, and the loss curves.

compute saved = 1 - C / C0        `danalab.experiments.saving`, for one run each
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from danalab.errors import UserError
from danalab.experiments.formats import Table, as_markdown, or_dash, short
from danalab.experiments.rows import (
    has_diverged,
    ladder_file,
    optimizer_flops_of,
    read_ladder,
    validation_points,
)
from danalab.experiments.saving import Saved, compute_saved, first_crossing, smoothed
from danalab.experiments.tuning import as_text, settings_of
from danalab.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RunCurve:
    """The data of one run for comparisons."""

    name: str
    opt: str
    settings: dict[str, Any]
    params: int
    summary: dict[str, Any]
    """Empty until the run ends."""
    steps: np.ndarray
    tokens: np.ndarray
    compute: np.ndarray
    """Of the model and of the optimizer's own matrix products [FLOPs]."""
    losses: np.ndarray
    """Validation loss on the fixed windows [nats/token]."""

    @property
    def final_loss(self) -> float:
        """Over the whole validation split where the run ended."""
        loss = self.summary.get("val/loss")
        return float(self.losses[-1]) if loss is None else loss


def read_curve(folder: Path) -> RunCurve:
    """Read a run folder, finished or not, or PACKED/NAME: the run of that name in a packed ladder or its folder."""
    from danalab.train.run.open import open_run

    packed = None if folder.exists() else ladder_file(folder.parent)
    row = next((row for row in read_ladder(packed) if row["name"] == folder.name), None) if packed else None
    if row is None:
        run = open_run(folder)
        name, settings, params = run.path.name, run.config["config"], run.config["params"]
        summary, points = run.summary or {}, [point for point in run.metrics() if "val/loss" in point]
    else:
        settings = row["settings"] | {key: row[key] for key in ("opt", "lr", "seed")}
        name, params, points = row["name"], row["params"], validation_points(row)
        summary = {"status": row["status"], "val/loss": row["final_loss"], "time": row["seconds"]}
        summary["diverged"] = has_diverged(row)
    if not points:
        raise UserError(f"{folder}: no validation loss in metrics.jsonl; was --eval-interval reached?")
    points = [point for point in points if point["tokens"] > 0] or points
    steps, tokens, losses = (
        np.array([point[key] for point in points]) for key in ("step", "tokens", "val/loss")
    )
    model = np.array([point.get("flops") or point["tokens"] for point in points], float)
    own = optimizer_flops_of(settings["opt"], settings, int(steps[-1])) or 0.0
    compute = model + own * steps / max(int(steps[-1]), 1)
    return RunCurve(name, settings["opt"], settings, params, summary, steps, tokens, compute, losses)


Row = dict[str, Any]
"""One run against the baseline, as --json prints it; losses [nats/token], over the whole split where the run ended."""


def compare(curves: Sequence[RunCurve], baseline: str | None = None) -> list[Row]:
    """One row per run, in order. UserError: `baseline` is not among the runs, or two runs share a name."""
    names = [curve.name for curve in curves]
    if len(set(names)) < len(names):
        raise UserError(f"two runs have the same name: {', '.join(sorted(names))}")
    if baseline is None:
        sound = [curve for curve in curves if not _diverged(curve)] or curves
        base = next((curve for curve in sound if curve.opt == "adamw"), sound[0])
    elif baseline in names:
        base = curves[names.index(baseline)]
    else:
        raise UserError(f"--baseline {baseline} is not among the runs: {', '.join(names)}")
    return [_row(curve, base) for curve in curves]


def _row(curve: RunCurve, base: RunCurve) -> Row:
    saved: Saved | None = None
    if curve is not base and not (_diverged(curve) or _diverged(base)):
        saved = compute_saved(base.compute, base.losses, curve.compute, curve.losses, n_bootstrap=0)
    target = float(smoothed(base.tokens.astype(float), base.losses)[-1])
    tokens = curve.tokens.astype(float)
    return {
        "run": curve.name,
        "opt": curve.opt,
        "lr": curve.settings["lr"],
        "seed": curve.settings["seed"],
        "params": curve.params,
        "tokens": int(curve.tokens[-1]),
        "data": curve.settings.get("data"),
        "init_from": curve.settings.get("init_from"),
        "flops": float(curve.compute[-1]),
        "val_loss": curve.final_loss,
        "val_bpb": curve.summary.get("val/bpb"),
        # None: the baseline's last loss was not reached
        "tokens_to_baseline": first_crossing(tokens, smoothed(tokens, curve.losses), target),
        # of the baseline's FLOPs, those of the optimizers' own products included; None: the baseline, or a diverged run
        "compute_saved": None if saved is None else saved.saved,
        # the crossing lies before the first evaluation: more is saved (where negative, less)
        "is_bound": saved is not None and saved.is_bound,
        "is_reached": saved is not None and saved.is_reached,
        "seconds": curve.summary.get("time"),
        "tokens_per_second": curve.summary.get("tokens_per_second"),
        "status": "diverged" if _diverged(curve) else curve.summary.get("status", "unfinished"),
        "is_baseline": curve is base,
    }


def _diverged(curve: RunCurve) -> bool:
    return bool(curve.summary.get("diverged")) or curve.summary.get("status") == "nonfinite"


def named_apart(curves: Sequence[RunCurve], folders: Sequence[Path]) -> list[RunCurve]:
    """Runs that share a name, renamed to their paths."""
    places = [folder.resolve() for folder in folders]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise UserError(f"{folders[i]}: named twice")
    names = [curve.name for curve in curves]
    pairs = zip(curves, folders, strict=True)
    return [
        curve if names.count(curve.name) == 1 else replace(curve, name=str(folder)) for curve, folder in pairs
    ]


def comparison_table(rows: Sequence[Row]) -> Table:
    """A line for each run."""
    lines = []
    for row in rows:
        against, saved = ["(baseline)", "(baseline)"], row["compute_saved"]
        if saved is None and not row["is_baseline"]:
            against = [row["status"] if row["status"] == "diverged" else "baseline diverged", "-"]
        elif saved is not None:
            bound = "" if not row["is_bound"] else ">= " if row["is_reached"] else "<= "
            tokens = (
                "not reached" if row["tokens_to_baseline"] is None else f"{row['tokens_to_baseline']:,.0f}"
            )
            against = [tokens, f"{bound}{saved:+.1%}"]
        lines.append(
            [
                row["run"],
                row["opt"],
                f"{row['params']:,}",
                or_dash(row["lr"], ".3g"),
                f"{row['val_loss']:.4f}",
                or_dash(row["val_bpb"], ".4f"),
                f"{row['tokens']:,}",
                *against,
            ]
        )
    headings = ["run", "optimizer", "parameters", "peak lr", "val loss", "bits/byte", "tokens"]
    return [*headings, "tokens to baseline's loss", "compute saved"], lines


def limits(rows: Sequence[Row]) -> list[str]:
    """What limits the comparison: data, models or lengths that differ, weights taken over, one seed of an optimizer."""
    found = []
    data = sorted({Path(row["data"]).name for row in rows if row["data"]})
    if len(data) > 1:
        found.append(f"runs on different data ({', '.join(data)}): losses and savings do not compare")
    taken = [row["run"] for row in rows if row["init_from"]]
    if taken:
        found.append(f"began with weights of other runs: {', '.join(taken)}")
    params, tokens = (sorted({row[key] for row in rows}) for key in ("params", "tokens"))
    if len(params) > 1:
        found.append(f"models of different sizes, {params[0]:,} to {params[-1]:,} parameters")
    if len(tokens) > 1:
        found.append(
            f"runs of different lengths, {tokens[0]:,} to {tokens[-1]:,} tokens: longer runs end lower"
        )
    seeds = Counter(opt for opt, _ in {(row["opt"], row["seed"]) for row in rows})
    single = [opt for opt in dict.fromkeys(row["opt"] for row in rows) if seeds[opt] == 1]
    if single and len(rows) > 1:
        whose = "per optimizer" if len(single) == len(seeds) else f"of {', '.join(single)}"
        found.append(f"one seed {whose}, so small differences may be noise")
    return found


def write_comparison(curves: Sequence[RunCurve], rows: Sequence[Row], out: Path) -> Path:
    """Write compare.md and the loss curves as PNG and SVG into `out`; returns the page."""
    from danalab.colors import save_figure

    out.mkdir(parents=True, exist_ok=True)
    baseline = next(curve for curve, row in zip(curves, rows, strict=True) if row["is_baseline"])
    lines = [
        f"# Runs compared with {baseline.name}",
        "",
        as_markdown(comparison_table(rows), ". ".join(limits(rows))),
    ]
    for axis in ("tokens", "compute"):
        save_figure(lambda axis=axis: loss_figure(curves, axis, baseline), out / f"loss-{axis}")
        lines += [f"![Validation loss against {axis}](loss-{axis}.svg)", ""]
    write_atomically(out / "compare.md", "\n".join(lines) + "\n")
    return out / "compare.md"


def loss_figure(
    curves: Sequence[RunCurve], axis: str = "tokens", baseline: RunCurve | None = None
) -> "Figure":
    """Validation loss against tokens or compute; runs that differ in the seed alone are a mean with a band.

    The baseline's last evaluation is a dotted line, so that crossings are visible.
    """
    from danalab.colors import optimizer_color
    from danalab.experiments import drawing

    figure, axes = drawing.canvas("training tokens" if axis == "tokens" else drawing.COMPUTE, drawing.LOSS)
    styles, drawn = ("-", (0, (5, 2)), (0, (2, 1.2)), "-."), Counter[str]()
    for label, runs in _by_settings(curves).items():
        opt, length = runs[0].opt, min(len(run.losses) for run in runs)
        losses = np.array([run.losses[:length] for run in runs])
        style: Any = styles[drawn[opt] % len(styles)]
        drawn[opt] += 1
        end: dict[str, Any] = {
            "marker": "o",
            "markevery": [-1],
            "markersize": 4,
        }  # also of a single evaluation
        x = getattr(runs[0], axis)[:length]
        drawing.band(axes, x, losses, optimizer_color(opt), label=label, linestyle=style, **end)
    if baseline is not None:
        label = f"{baseline.opt}'s last evaluation"
        axes.axhline(
            float(baseline.losses[-1]),
            color=optimizer_color(baseline.opt),
            linestyle=":",
            linewidth=1,
            label=label,
        )
    axes.set_xscale("log")
    drawing.zoom(
        axes, [float(curve.losses[-1]) for curve in curves], max(float(curve.losses[0]) for curve in curves)
    )
    top = axes.get_ylim()[1]
    shown = [
        x for each in curves for x, loss in zip(getattr(each, axis), each.losses, strict=True) if loss <= top
    ]
    if shown:
        axes.set_xlim(left=0.9 * min(shown) or None)  # the first fall of losses is above the figure
    if axis == "tokens":
        drawing.counts(axes.xaxis)
    drawing.legend(figure)
    return figure


def _by_settings(curves: Sequence[RunCurve]) -> dict[str, list[RunCurve]]:
    """Runs that differ in the seed alone, by a name that tells them apart."""
    groups: dict[tuple[Any, ...], list[RunCurve]] = defaultdict(list)
    for curve in curves:
        others = as_text(settings_of({"lr": curve.settings["lr"], "settings": curve.settings}))
        groups[curve.opt, curve.params, curve.settings["lr"], int(curve.tokens[-1]), others].append(curve)
    keys = list(groups)
    named = {}
    for key, runs in groups.items():
        words = [key[0]]
        forms = (
            lambda n: f"{short(n)} parameters",
            lambda lr: f"lr {lr:.3g}",
            lambda n: f"{short(n)} tokens",
        )
        for place, form in enumerate(forms, start=1):
            if len({other[place] for other in keys if other[0] == key[0]}) > 1:
                words.append(form(key[place]))
        label = ", ".join(words) + (f" ({len(runs)} seeds)" if len(runs) > 1 else "")
        named[label if label not in named else f"{label}, {runs[0].name}"] = runs
    return named
