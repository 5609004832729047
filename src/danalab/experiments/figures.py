"""The figures of a ladder: compute saved, laws, curves, learning rates, horizons, sweeps of kappa.

Each takes an `Analysis` and returns a figure, or None where the rows have nothing to draw.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.errors import UserError
from danalab.experiments import drawing
from danalab.experiments.analysis import Analysis, curves_of
from danalab.experiments.formats import fraction, short
from danalab.experiments.rows import Row, is_usable
from danalab.experiments.saving import LEAST_SEEDS
from danalab.experiments.tuning import value_of

TALLEST = 5.0  # a panel of losses shows this many times the median excess
HORIZON = "horizon f = tokens / (20 parameters)"
LEAST_VALUES = 3  # values of a setting that make a sweep


def headline_figure(found: Analysis) -> Figure:
    """Loss against compute with the laws, and compute saved at each size; hollow where there are too few seeds."""
    figure, (above, below) = drawing.panels(2, columns=1, each=(4.9, 3.7))
    for opt in found.opts:
        drawing.group(above, opt, [(each.flops, each.losses) for each in found.at(opt)], opt)
        if opt in found.compute_laws:
            law = found.compute_laws[opt]
            drawing.law_lines(above, optimizer_color(opt), law, *law.measured[0], law.samples)
    above.set(xscale="log", yscale="log", xlabel=drawing.COMPUTE, ylabel="final " + drawing.LOSS)
    drawing.plain(above.yaxis)
    below.axhline(0, color=optimizer_color(found.baseline), linewidth=1.4)
    contenders = [opt for opt in found.contenders if found.saved[opt]]
    saved = [each for opt in contenders for each in found.saved[opt].values()]
    ends = [end for each in saved if each.interval for end in (each.interval.low, each.interval.high)]
    within = drawing.limit_shares(below, [each.saved for each in saved] + ends)
    for position, opt in enumerate(contenders):
        factor = drawing.aside(position, len(contenders))
        sizes = sorted(found.saved[opt].items())
        results = [(each.saved, each.interval) for _, each in sizes]
        drawing.estimates(
            below, [params * factor for params, _ in sizes], results, opt, within, linewidth=1.2
        )
    below.set(xscale="log", xlabel=drawing.SIZE, ylabel=f"compute saved against {found.baseline}")
    drawing.counts(below.xaxis)
    few = any(each.interval is None for each in saved)
    unknown = f"fewer than {LEAST_SEEDS} seeds" if few else ""
    drawing.legend(figure, laws=bool(found.compute_laws), unknown=unknown)
    return figure


def curves_figure(found: Analysis) -> Figure | None:
    """Validation loss over training, one panel per size: mean over seeds, band from lowest to highest."""
    sizes = sorted({each.params for each in found.tuned})
    figure, places = drawing.panels(len(sizes))
    drawn = False
    for axes, params in zip(places, sizes, strict=True):
        finals, firsts, starts = [], [], []
        for each in (each for opt in found.opts for each in found.at(opt) if each.params == params):
            try:
                tokens, _, losses = curves_of(each, found.convention)
            except UserError:  # no curve
                continue
            length = min(map(len, losses))
            runs = np.array([loss[:length] for loss in losses])
            line: dict[str, Any] = {**drawing.look(each.opt), "markevery": [-1], "linewidth": 1.3}
            drawing.band(axes, tokens[0][:length], runs, label=each.opt, **line)
            finals.append(float(runs[:, -1].mean()))
            firsts.append(float(runs[:, 0].max()))
            starts.append(float(tokens[0][min(3, (length - 1) // 2)]))
        axes.set(title=f"{short(params)} parameters", xlabel="training tokens", xscale="log")
        if finals:
            drawn = True
            drawing.zoom(axes, finals, max(firsts))
            axes.set_xlim(left=0.9 * min(starts))
            drawing.counts(axes.xaxis)
        if drawing.is_leftmost(axes):
            axes.set_ylabel(drawing.LOSS)
    drawing.legend(figure)
    return figure if drawn else None


def lr_law_figure(found: Analysis) -> Figure | None:
    """The best learning rate of each size, all that were tried, and the law."""
    if not any(len(each.rates) > 1 for each in found.tuned):
        return None
    figure, axes = drawing.canvas("non-embedding parameters", "peak learning rate")
    for opt in found.opts:
        points, color = found.at(opt), optimizer_color(opt)
        tried = [(each.non_emb_params, rate) for each in points for rate in each.rates]
        small: dict[str, Any] = {
            "linestyle": "",
            "markersize": 2.2,
            "alpha": 0.5,
            "marker": "o",
            "color": color,
        }
        axes.plot([x for x, _ in tried], [y for _, y in tried], **small)
        sizes = [float(each.non_emb_params) for each in points]
        axes.plot(sizes, [each.lr for each in points], linestyle="", label=opt, **drawing.look(opt))
        if opt in found.lr_laws:
            law = found.lr_laws[opt]
            samples = [replace(law, a=a, b=b, d=d) for a, b, d in law.samples]
            drawing.law_lines(axes, color, law, min(sizes), max(sizes), samples)
    axes.set(xscale="log", yscale="log")
    rates = [rate for each in found.tuned for rate in each.rates]
    axes.set_ylim(0.6 * min(rates), 1.6 * max(rates))
    drawing.counts(axes.xaxis)
    drawing.legend(figure, laws=bool(found.lr_laws))
    return figure


def sensitivity_figure(found: Analysis) -> Figure | None:
    """Loss above the best trial against the multiplier of the learning-rate law, one panel per size."""
    sizes = sorted({each.params for each in found.tuned if len(each.rates) > 1})
    if not sizes:
        return None
    figure, places = drawing.panels(len(sizes))
    for axes, params in zip(places, sizes, strict=True):
        seen: list[float] = []
        for opt in found.opts:
            here = [each for each in found.at(opt) if each.params == params]
            for each in here[-1:]:  # the longest horizon
                rows = each.rate_trials
                least = min(row["final_loss"] for row in rows)
                x = [row["lr_multiplier"] or row["lr"] for row in rows]
                above = [row["final_loss"] - least for row in rows]
                seen += above
                axes.plot(x, above, label=opt, linewidth=1.1, **drawing.look(opt))
        top = min(max(seen), TALLEST * float(np.median([y for y in seen if y > 0] or [1.0])))
        axes.set(
            xscale="log", title=f"{short(params)} parameters", xlabel="multiplier of the learning-rate law"
        )
        axes.set_ylim(-0.05 * top, 1.08 * top)
        drawing.counts(axes.xaxis, words=fraction)
        if drawing.is_leftmost(axes):
            axes.set_ylabel("loss above best trial [nats/token]")
    drawing.legend(figure)
    return figure


# ---- horizons ----
def multiplier_figure(found: Analysis) -> Figure | None:
    """Token multiplier against the horizon, one panel per size, with the law of all sizes."""
    horizon = found.horizon
    if horizon is None or not horizon.multipliers:
        return None
    sizes = sorted({each.params for each in horizon.multipliers})
    opts = list(dict.fromkeys(each.opt for each in horizon.multipliers))
    figure, places = drawing.panels(len(sizes), columns=1, each=(5.4, 3.2))
    ends = [
        end
        for each in horizon.multipliers
        if each.interval
        for end in (each.interval.low, each.interval.high)
    ]
    values = [1.0, *(end for end in (*ends, *(each.value for each in horizon.multipliers)) if 0.1 < end < 10)]
    within = min(values), max(values)
    base: dict[str, Any] = {
        "color": optimizer_color(horizon.baseline),
        "label": f"{horizon.baseline} (baseline)",
    }
    for axes, params in zip(places, sizes, strict=True):
        axes.axhline(1, linewidth=1.4, **base)
        for position, opt in enumerate(opts):
            mine = [each for each in horizon.multipliers if (each.opt, each.params) == (opt, params)]
            if not mine:
                continue
            mine.sort(key=lambda each: each.horizon)
            factor = drawing.aside(position, len(opts))
            x = [each.horizon * factor for each in mine]
            results = [(each.value, each.interval) for each in mine]
            drawing.estimates(axes, x, results, opt, within, linestyle="")
            if horizon.law is not None:
                f = np.geomspace(mine[0].horizon, mine[-1].horizon, 40)
                line = np.exp([horizon.law.log_multiplier(opt, each) for each in f])
                axes.plot(f * factor, line, color=optimizer_color(opt), linewidth=1.0, alpha=0.7)
        axes.set(title=f"{short(params)} parameters", xlabel=HORIZON, xscale="log", yscale="log")
        axes.set_ylim(within[0] / 1.15, within[1] * 1.15)
        drawing.counts(axes.xaxis, {each.horizon for each in horizon.multipliers}, fraction)
        drawing.counts(axes.yaxis, words=fraction)
        if drawing.is_leftmost(axes):
            axes.set_ylabel(f"tokens of {horizon.baseline} at equal loss\n/ tokens of the optimizer")
    unknown = any(each.interval is None for each in horizon.multipliers)
    drawing.legend(figure, unknown="noise not known" if unknown else "")
    return figure


def horizon_loss_figure(found: Analysis) -> Figure | None:
    """Final loss against the horizon, one panel per size, with the law."""
    horizon = found.horizon
    if horizon is None:
        return None
    sizes = sorted({each.params for each in found.tuned})
    figure, places = drawing.panels(len(sizes), columns=1, each=(5.4, 3.2))
    for axes, params in zip(places, sizes, strict=True):
        for opt in found.opts:
            mine = [each for each in found.at(opt) if each.params == params]
            drawing.group(axes, opt, [(each.horizon, each.losses) for each in mine], opt)
            law = horizon.law
            if law is not None and opt in law.slopes and params in law.floors and len(mine) > 1:
                f = np.geomspace(min(each.horizon for each in mine), max(each.horizon for each in mine), 60)
                axes.plot(
                    f, [law(opt, params, each) for each in f], color=optimizer_color(opt), linewidth=1.2
                )
        axes.set(title=f"{short(params)} parameters", xlabel=HORIZON, xscale="log", yscale="log")
        drawing.counts(axes.xaxis, words=fraction)
        drawing.plain(axes.yaxis)
        if drawing.is_leftmost(axes):
            axes.set_ylabel("final " + drawing.LOSS)
    alone = any(len(each.runs) == 1 for each in found.tuned)
    drawing.legend(figure, unknown="one seed" if alone else "")
    return figure


# ---- sweeps ----
def kappa_figure(found: Analysis) -> Figure | None:
    """Final loss against kappa, each at its best learning rate: the hummingbird on a language model."""
    lines: dict[str, dict[float, list[Row]]] = defaultdict(lambda: defaultdict(list))
    usable = [row for row in found.rows if is_usable(row) and value_of(row, "kappa") is not None]
    several = len({row["params"] for row in usable}) > 1
    for row in usable:
        clip = value_of(row, "clipsnr")
        words = [row["opt"], *([] if clip is None else [f"clipsnr {clip:g}"])]
        words += [f"{short(row['params'])} parameters"] if several else []
        lines[", ".join(words)][float(value_of(row, "kappa"))].append(row)
    lines = {words: values for words, values in lines.items() if len(values) >= LEAST_VALUES}
    if not lines:
        return None
    figure, axes = drawing.canvas(
        r"$\kappa$ (damping of the long momentum, $(1+t)^{1-\kappa}$)", "final " + drawing.LOSS
    )
    styles, bests, alone = itertools.cycle(("-", "--", "-.", ":")), [], False
    for words, values in lines.items():
        opt = next(iter(values.values()))[0]["opt"]
        points = [(value, _best_losses(rows)) for value, rows in sorted(values.items())]
        bests += [float(np.mean(losses)) for _, losses in points]
        alone = alone or any(len(losses) == 1 for _, losses in points)
        drawing.group(
            axes, opt, points, words, linestyle=next(styles) if len(lines) > 1 else "-", linewidth=1.2
        )
    base = [
        each
        for each in found.at(found.baseline)
        if found.baseline not in {words.split(",")[0] for words in lines}
    ]
    if base:
        color = optimizer_color(found.baseline)
        axes.axhline(base[0].loss, color=color, linewidth=1.2, linestyle=":", label=found.baseline)
    # Losses of values that hardly train are above the figure.
    top = min(bests) + TALLEST * max(float(np.median(bests)) - min(bests), 0.02)
    axes.set_ylim(top=min(axes.get_ylim()[1], top))
    drawing.legend(figure, unknown="one seed" if alone else "")
    return figure


def _best_losses(rows: Sequence[Row]) -> list[float]:
    """Losses over seeds at the best of several rates; it is one of those with the most seeds."""
    rates: dict[float, list[float]] = defaultdict(list)
    for row in rows:
        rates[row["lr"]].append(row["final_loss"])
    most = max(map(len, rates.values()))
    return min((losses for losses in rates.values() if len(losses) == most), key=lambda each: math.fsum(each))


FIGURES: dict[str, tuple[Callable[[Analysis], Figure | None], str]] = {
    "headline": (
        headline_figure,
        "Above: final loss against compute, one point per size (mean over seeds, bars from lowest to highest), with "
        "the fitted laws and their 95% bands. Below: compute saved at equal loss; bars are 95% intervals, hollow "
        "points have too few seeds for one.",
    ),
    "loss-curves": (curves_figure, "Validation loss over training at the best settings of each size."),
    "lr-law": (lr_law_figure, "Best learning rate of each size, all that were tried (small), and the law."),
    "lr-sensitivity": (sensitivity_figure, "Loss of each learning rate above the best trial."),
    "horizon-gain": (
        multiplier_figure,
        "Tokens that the baseline needs for the loss of an optimizer, over the tokens that this one had. Bars are 95% "
        "intervals, with an arrow where they go on; lines are the law of all sizes together.",
    ),
    "horizon-loss": (horizon_loss_figure, "Final loss against the length of the run, and the law."),
    "kappa": (kappa_figure, "Final loss against kappa, at the best learning rate of each value."),
}
"""File name -> the function that draws, and the caption."""
