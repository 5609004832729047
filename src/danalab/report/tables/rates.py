"""Tables of learning rates: predictions for other sizes, and costs of wrong rates."""

from danalab.ladder.analysis import Analysis, PredictedRate
from danalab.report.tables.formats import Table

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
