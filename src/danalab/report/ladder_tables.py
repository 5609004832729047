"""The tables of a ladder, as headings and lines of text: for the terminal, Markdown, LaTeX and CSV alike."""

from collections.abc import Callable, Sequence

from danalab.ladder.analysis import Analysis, PredictedRate
from danalab.report.cost import hours_of, relative_time, spent
from danalab.report.data import ReportData, Row, is_finished
from danalab.report.formats import Linked, Table
from danalab.report.headline import headlines, interval_words, saved_words, share, tuning_words

Address = Callable[[Row], str]
"""Where a run's folder is, from where the table is read."""


def headline_table(data: ReportData) -> Table:
    """A line for each contender at the largest size that the baseline ran too."""
    lines = [
        [
            each.opt,
            each.answer,
            each.known.replace("95% interval ", "").partition(";")[0],
            f"{each.params:,}",
            each.seeds,
            each.trials,
        ]
        for each in headlines(data)
    ]
    against = f"compute saved against {data.analysis.baseline}"
    return ["optimizer", against, "95% interval", "parameters", "seeds", "learning rates"], lines


def tuned_table(found: Analysis, address: Address | None = None) -> Table:
    """A line for each optimizer and size: its best learning rate (marked where it is the outermost one tried),
    how many settings were tried, its loss over seeds."""
    lines = []
    for opt in found.opts:
        for each in found.at(opt):
            edge = " (edge)" if each.at_edge else ""
            lines.append([
                opt,
                f"{each.params:,}",
                f"{each.flops:.3g}",
                f"{each.lr:.3g}{edge}",
                str(each.trials),
                _linked(f"{each.loss:.4f}", each.runs[:1], address),
                "-" if each.spread is None else f"{each.spread:.4f}",
                _seeds(each.runs, address),
            ])  # fmt: skip
    return ["optimizer", "parameters", "FLOPs", "peak lr", "trials", "val loss", "sd over seeds", "seeds"], lines


def saved_table(found: Analysis, address: Address | None = None) -> Table:
    """A line for each contender and size, and one for each contender over all sizes by the laws."""
    lines: list[list[str]] = []
    at = {(each.opt, each.params): each for each in found.tuned}
    for opt in found.opts[1:]:
        for params, saved in sorted(found.saved.get(opt, {}).items()):
            behind = "" if saved.behind is None else f"{saved.behind:.0%}"
            lines.append([
                opt,
                f"{params:,}",
                _linked(saved_words(saved), at[opt, params].runs[:1], address),
                interval_words(saved.interval),
                behind,
                _seeds(at[opt, params].runs, address),
                _seeds(at[found.baseline, params].runs, address),
                tuning_words(at[opt, params], at[found.baseline, params]),
            ])  # fmt: skip
        if opt in found.gains:
            gain = found.gains[opt]
            words = "no loss in common" if gain.mean is None else share(gain.mean, 0 if gain.interval is None else 1)
            lines.append([opt, "all, by the laws", words, interval_words(gain.interval), "", "", "", ""])
    base = found.baseline
    return [
        "optimizer",
        "parameters",
        "compute saved",
        "95% interval",
        f"where {base} was there",
        "seeds",
        f"{base}'s seeds",
        "trials",
    ], lines


def law_table(found: Analysis) -> Table:
    """A line for each optimizer's loss law."""
    lines = []
    for opt, law in found.loss_laws.items():
        cells = []
        for name, value in law.coefficients.items():
            interval = law.intervals.get(name)
            cells.append(f"{value:.4g}" + (f" ({interval.low:.4g} to {interval.high:.4g})" if interval else ""))
        lines.append([opt, *cells, f"{law.r2:.5f}", Linked(str(len(law.residuals)), f"#runs-{opt}")])
    names = list(next(iter(found.loss_laws.values())).coefficients) if found.loss_laws else []
    return ["optimizer", *names, "R2 of log loss", "runs"], lines


def lr_law_table(found: Analysis) -> Table:
    """A line for each optimizer's learning-rate law, lr = a (b + P)^d."""
    lines = [
        [
            opt,
            f"{law.a:.4g}",
            f"{law.b:.4g}",
            f"{law.d:.4g}",
            str(law.n_sizes),
            Linked(str(law.n_trials), f"#runs-{opt}"),
        ]
        for opt, law in found.lr_laws.items()
    ]
    return ["optimizer", "a", "b", "d", "sizes", "trials"], lines


def cost_table(data: ReportData) -> Table:
    """Device-hours of each optimizer's runs, as logged, evaluation apart; with a price, the cost."""
    price, ratios = data.dollars_per_hour, relative_time(data)
    lines = []
    for opt, mine in spent(data).items():
        ratio = f"{ratios[opt]:.2f}" if opt in ratios else "-"
        lines.append([
            opt, ", ".join(sorted(mine.devices)), Linked(str(mine.runs), f"#runs-{opt}"),
            *(f"{mine.hours[part]:.3g}" for part in mine.hours), f"{mine.total:.3g}", ratio,
            *([] if price is None else [f"{mine.total * price:.2f}"]),
        ])  # fmt: skip
    priced = [] if price is None else [f"cost at {price:g} $/h"]
    hours = ["hours of trials", "of the chosen rate", "of failed runs", "device-hours"]
    return ["optimizer", "device", "runs", *hours, f"time a token / {data.analysis.baseline}'s", *priced], lines


def runs_table(rows: Sequence[Row], address: Address) -> Table:
    """A line for each run, finished or not."""
    lines = [
        [
            row["opt"],
            Linked(row["name"], address(row)),
            f"{row['params']:,}",
            rate_words(row),
            str(row["seed"]),
            f"{row['final_loss']:.4f}" if is_finished(row) else status_words(row),
            f"{hours_of(row):.3g}",
        ]
        for row in rows
    ]
    return ["optimizer", "run", "parameters", "peak lr", "seed", "val loss", "device-hours"], lines


def failed_table(rows: Sequence[Row], address: Address) -> Table:
    """A line for each run that did not end with a finite loss."""
    lines = [
        [row["opt"], Linked(row["name"], address(row)), rate_words(row), status_words(row)]
        for row in rows
        if not is_finished(row)
    ]  # fmt: skip
    return ["optimizer", "run", "peak lr", "what happened"], lines


def rate_words(row: Row) -> str:
    """The run's peak learning rate."""
    return "-" if row.get("lr") is None else f"{row['lr']:.3g}"


def status_words(row: Row) -> str:
    """The end of a run without a final loss."""
    if row["status"] == "finished":
        return "loss not finite"
    return "loss not finite, stopped" if row["status"] == "nonfinite" else str(row["status"])


def _linked(text: str, runs: Sequence[Row], address: Address | None) -> str:
    return text if address is None or not runs else Linked(text, address(runs[0]))


def _seeds(runs: Sequence[Row], address: Address | None) -> str:
    """The seeds, each a link to its run."""
    if address is None:
        return str(len(runs))
    return Linked.several([(str(row["seed"]), address(row)) for row in sorted(runs, key=lambda row: row["seed"])])


WIDEST = 1000
"""Intervals of learning rates wider than this factor are shown without numbers."""


def predicted_table(found: Analysis) -> Table:
    """A line for each optimizer and size: the law's learning rate, its interval, and the cost of its farther end."""
    lines = [
        [opt, f"{each.non_emb_params:,.0f}", f"{each.lr:.3g}", _interval(each), _words(each), _cost(each)]
        for opt, rates in found.predicted_rates.items()
        for each in rates
    ]
    return ["optimizer", "parameters (not emb.)", "peak lr", "95% interval", "", "loss at its end"], lines


def _interval(rate: PredictedRate) -> str:
    if rate.interval is None:
        return "not known"
    low, high = rate.interval.low, rate.interval.high
    return f"{low:.3g} to {high:.3g}" if high <= WIDEST * low else f"over {WIDEST}-fold"


def _words(rate: PredictedRate) -> str:
    return "extrapolated" if rate.extrapolated else "within the sizes measured"


def _cost(rate: PredictedRate) -> str:
    return "-" if rate.loss_increase is None else f"{rate.loss_increase:+.4f}"


def tolerance_table(found: Analysis) -> Table:
    """A line for each optimizer and size: the learning rates within a share of the best loss. A bound with <= or >=
    is the outermost rate tried: the interval may extend beyond it."""
    lines, share = [], 0.0
    for opt, sizes in found.tolerances.items():
        for params, each in sorted(sizes.items()):
            share = 100 * each.within
            low = ("<= " if each.low_is_open else "") + f"{each.low:.3g}"
            high = (">= " if each.high_is_open else "") + f"{each.high:.3g}"
            own = found.curvatures.get(opt, {}).get(params)
            lines.append([opt, f"{params:,}", str(each.n_rates), f"{each.best_lr:.3g}", low, high,
                          "-" if own is None else f"{own.curvature:.4f}"])  # fmt: skip
    return ["optimizer", "parameters", "rates", "best", f"lowest within {share:.3g}%", "highest", "curvature"], lines


def shared_curvature_table(found: Analysis) -> Table:
    """A line for each optimizer: the curvature of the loss in log lr that its sizes share, and the cost of factors.

    Where the interval of the curvature reaches 0, its costs are not known.
    """
    lines = [
        [
            opt,
            f"{each.curvature:.4f}",
            f"{each.interval.low:.4f} to {each.interval.high:.4f}",
            *(f"{each.loss_increase(factor):+.4f}" if each.is_known else "not known" for factor in (1.2, 1.5, 2.0)),
            str(each.n_sizes),
            str(each.n_rates),
        ]
        for opt, each in found.shared_curvatures.items()
    ]
    return ["optimizer", "curvature", "95% interval", "lr 1.2x off", "1.5x", "2x", "sizes", "rates"], lines
