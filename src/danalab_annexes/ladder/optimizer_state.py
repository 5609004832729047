"""Recorded states of optimizers: schedules, tau, and the share of clipped coordinates."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from danalab.errors import UserError
from danalab.ladder.rows import metrics_of
from danalab.report.data import MissingFigure, ReportData
from danalab.report.figures.drawing import counts, legend, look, panels, percent, plain, powers, shades, styled
from danalab.sweep.rows import is_usable
from danalab.train.run.metrics import read_rows

KINDS = {
    "embedding": re.compile(r"token_embedding|position|wte|wpe"),
    "attention": re.compile(r"attention\.|attn\.|mixer\."),
    "mlp": re.compile(r"mlp\.|experts"),
    "head": re.compile(r"^(lm_|output_)?head\."),
}
"""Kinds of matrices, by the names of parameters; gains and biases are none of them."""
NORMS = re.compile(r"norm|bias$")
DASH = 4.0  # length of the alternating dashes of equal schedules [line widths]
SNAPSHOTS = 4  # steps whose distributions of tau are drawn
SIGNAL = "signal.jsonl"  # of --log-dynamics
LEAST_SHARE = 1e-4  # tails of distributions are drawn to this share of coordinates

_SCHEDULES = (
    ("optim/beta", r"weight of the new gradient, $1-\beta(t)$", "share", lambda value: 1 - value),
    ("optim/alpha", r"damping of the long momentum, $\alpha(t)$", "factor", lambda value: value),
    ("optim/lambda", r"weight decay, $\lambda(t)$", "share a step", lambda value: value),
    ("lr", "learning rate", "learning rate", lambda value: value),
)


@styled
def schedule_figure(data: ReportData) -> Figure | MissingFigure:
    """beta(t), alpha(t), lambda(t) and the learning rate of each optimizer's largest tuned run, as recorded."""
    logs = {}
    for run in data.tuned_runs():
        if run["opt"] not in logs and (rows := metrics_of(run)):
            logs[run["opt"]] = rows
    shown = [each for each in _SCHEDULES if any(each[0] in row for rows in logs.values() for row in rows)]
    if not shown:
        return MissingFigure("the runs' own metrics: these rows have only validation losses")
    figure, places = panels(len(shown), columns=2, each=(3.7, 2.6))
    for axes, (key, title, label, of) in zip(places, shown, strict=True):
        lines = {opt: [(row["step"], of(row[key])) for row in logs.get(opt, []) if key in row] for opt in logs}
        if key != "lr":
            # The first row is isolated before a gap.
            lines = {opt: points[1:] for opt, points in lines.items()}
            axes.set_xscale("log")
        drawn = [opt for opt in data.analysis.opts if lines.get(opt)]
        for opt in drawn:
            # Equal schedules coincide: their dashes alternate.
            equal = [other for other in drawn if lines[other] == lines[opt]]
            place = equal.index(opt)
            style = (DASH * (len(equal) - place), (DASH, DASH * (len(equal) - 1))) if len(equal) > 1 else "-"
            axes.plot(*zip(*lines[opt], strict=True), linestyle=style, color=look(opt)["color"], dash_capstyle="butt")
        values = [y for opt in drawn for _, y in lines[opt]]
        axes.set(title=title, xlabel="optimizer step t", ylabel=label)
        if min(values) > 0:
            axes.set_yscale("log")
            (powers if min(values) < 0.01 else plain)(axes.yaxis)
        if key != "lr":
            counts(axes.xaxis)
    legend(figure, *(Line2D([], [], color=look(opt)["color"], label=opt) for opt in data.analysis.opts if opt in logs))
    return figure


@styled
def tau_figure(data: ReportData) -> Figure | MissingFigure:
    """Distribution of tau over coordinates at several steps, one panel per kind of matrix, tails spread out."""
    folders = runs_with(data, "tau")
    if not folders:
        return MissingFigure("statistics of tau: train dana-star or dana-star-mk4 with --collect-tau-stats")
    opt, folder = next(iter(folders.items()))
    files = sorted((folder / "tau").glob("tau-step-*.npz"))
    files = [files[i] for i in sorted({round(i) for i in np.linspace(0, len(files) - 1, SNAPSHOTS)})]
    stats = [read_tau_statistics(file) for file in files]
    kinds = [kind for kind in KINDS if any(kind_of(name) == kind for _, taus in stats for name in taus)]
    figure, places = panels(len(kinds), columns=2, each=(3.7, 2.9))
    colors = shades(len(stats))
    for axes, kind in zip(places, kinds, strict=True):
        reach = []
        for (step, taus), color in zip(stats, colors, strict=True):
            tau, share = merged_distribution([each for name, each in taus.items() if kind_of(name) == kind])
            axes.plot(tau, share, color=color, label=f"step {step:,}", linewidth=1.5)
            inside = (share > LEAST_SHARE) & (share < 1 - LEAST_SHARE)
            reach += [tau[inside].min(), tau[inside].max()] if inside.any() else []
        axes.set(yscale="logit", title=kind, xlabel=r"$\tau$ (share of steps with a gradient)")
        axes.set_ylim(LEAST_SHARE, 1 - LEAST_SHARE)
        if reach and max(reach) > 30 * min(reach) > 0:
            axes.set_xscale("log")
            axes.set_xlim(min(reach) / 1.05, max(reach) * 1.05)
            plain(axes.xaxis)
        axes.set_yticks([1e-3, 1e-2, 0.1, 0.5, 0.9, 0.99, 0.999])
        percent(axes.yaxis)
        axes.set_yticks([], minor=True)
        axes.set_ylabel("coordinates below")
    legend(figure, title=f"{opt}, run {folder.name}")
    return figure


@styled
def clipping_figure(data: ReportData) -> Figure | MissingFigure:
    """Share of coordinates whose damped momentum is clipped to clipsnr: a panel per kind, a line per layer."""
    runs = runs_with(data, SIGNAL).items()
    logs = ((opt, folder, read_rows(folder / SIGNAL)) for opt, folder in runs)
    found = next((log for log in logs if log[2] and any(key.endswith("/clipped") for key in log[2][0])), None)
    if found is None:
        return MissingFigure("signal-to-noise ratios by layer: train dana-mk4 or dana-star-mk4 with --log-dynamics")
    opt, folder, rows = found
    lines = _by_layer(rows)
    kinds = [kind for kind in KINDS if kind in lines]
    layers = {layer for shares in lines.values() for layer in shares}
    depth = max(layers) + 1
    figure, places = panels(len(kinds), columns=2, each=(3.7, 2.6))
    colors = shades(depth)
    for axes, kind in zip(places, kinds, strict=True):
        for layer, shares in sorted(lines[kind].items()):
            color = look(opt)["color"] if layer < 0 else colors[layer]
            axes.plot([row["step"] for row in rows], shares, color=color, linewidth=1.4)
        axes.set(xscale="log", title=kind, xlabel="optimizer step t", ylabel="coordinates clipped")
        highest = max(0.01, *(share for shares in lines[kind].values() for share in shares))
        axes.set_ylim(-0.03 * highest, 1.06 * highest)
        counts(axes.xaxis)
        percent(axes.yaxis)
    every = max(depth // 6, 1)
    handles = [Line2D([], [], color=colors[i], label=f"layer {i}") for i in range(0, depth, every)]
    outside = [Line2D([], [], color=look(opt)["color"], label="outside of the layers")] * (-1 in layers)
    legend(figure, *handles, *outside, title=f"{opt}, run {folder.name}")
    return figure


def runs_with(data: ReportData, name: str) -> dict[str, Path]:
    """Optimizer -> folder of one of its runs that holds `name`: the largest, longest, best tuned one."""
    others = [row for row in data.rows if is_usable(row)]
    others.sort(key=lambda row: (-row["params"], -row["tokens"], row["final_loss"]))
    chosen: dict[str, Path] = {}
    for row in (*data.tuned_runs(), *others):
        folder = Path(row["run"])
        if row["opt"] not in chosen and (folder / name).exists():
            chosen[row["opt"]] = folder
    return chosen


def kind_of(name: str) -> str | None:
    """Which of `KINDS` a parameter is; None: a gain or a bias."""
    if NORMS.search(name):
        return None
    return next((kind for kind, pattern in KINDS.items() if pattern.search(name)), None)


def distribution(statistics: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(values, share of coordinates at or below) of one parameter's tau, rebuilt from both of its tails, ascending."""
    n = int(np.prod(statistics["shape"]))
    ranks = statistics["ranks"].astype(float)
    values = np.concatenate([statistics["smallest"], statistics["largest"]])
    shares = np.concatenate([(ranks + 0.5) / n, 1 - (ranks + 0.5) / n])
    order = np.lexsort((values, shares))
    return np.maximum.accumulate(values[order]), shares[order]


def merged_distribution(parts: Sequence[Mapping[str, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The distribution of several parameters together, each by its number of coordinates."""
    each = [distribution(part) for part in parts]
    sizes = np.array([float(np.prod(part["shape"])) for part in parts])
    at = np.unique(np.concatenate([values for values, _ in each]))
    shares = [np.interp(at, *_steps(values, shares), left=0.0, right=1.0) for values, shares in each]
    return at, np.average(shares, axis=0, weights=sizes)


def _steps(values: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One share for each value: the highest, as "at or below" means."""
    last = np.append(np.diff(values) > 0, True)
    return values[last], shares[last]


def _by_layer(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, list[float]]]:
    """Kind -> layer (-1: in none) -> mean share clipped in each row, over the kind's matrices in the layer."""
    members: dict[tuple[str, int], list[str]] = defaultdict(list)
    for key in rows[0]:
        name, _, what = key.rpartition("/")
        kind = kind_of(name)
        if what == "clipped" and kind is not None:
            layer = re.search(r"(?:blocks|layers|h)\.(\d+)\.", name)
            members[kind, int(layer.group(1)) if layer else -1].append(key)
    shares: dict[str, dict[int, list[float]]] = defaultdict(dict)
    for (kind, layer), keys in members.items():
        shares[kind][layer] = [float(np.mean([row[key] for key in keys])) for row in rows]
    return shares


def read_tau_statistics(file: Path) -> tuple[int, dict[str, dict[str, np.ndarray]]]:
    """(step, {parameter: {shape, ranks, smallest, largest, quantiles}}) of a file of --collect-tau-stats."""
    tau: dict[str, dict[str, np.ndarray]] = {}
    try:
        with np.load(file, allow_pickle=False) as arrays:
            for key in arrays.files:
                name, colon, what = key.rpartition(":")
                if colon:
                    tau.setdefault(name, {})[what] = arrays[key]
            return int(arrays["step"]), tau
    except Exception as error:  # a damaged file may raise almost anything
        raise UserError(f"{file}: not a file of tau statistics: {error}") from error
