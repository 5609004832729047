"""The tables of a ladder, as headings and lines of text: for the terminal, Markdown, LaTeX and CSV alike."""

from collections.abc import Sequence
from pathlib import Path

from danalab.ladder.fit.tuning import Tuned
from danalab.ladder.studies import Address, Analysis, all_studies
from danalab.report.data import ReportData, Row, hours_of, relative_time, spent
from danalab.report.formats import Linked, Table, or_dash, span
from danalab.report.headline import extent, gain_words, headlines, interval_words, saved_words, tuning_words
from danalab.sweep.rows import is_usable

WIDEST = 1000  # intervals of learning rates wider than this factor are shown without numbers
_LAWS = {
    "saturated": "E + A C^-alpha",
    "broken": "E + A C^-alpha + B C^-beta",
    "chinchilla": "E + A N^-alpha + B D^-beta",
}


def analysis_tables(
    analysis: Analysis, address: Address | None = None, folder: Path | None = None
) -> dict[str, tuple[str, Table]]:
    """Name -> (title, table) of everything that was fitted; a result that is missing has no lines.

    `folder`: the ladder's, for studies that keep a file there.
    """
    laws = list(analysis.loss_laws.values())
    formula = _LAWS[laws[0].kind] if laws else ""
    shared = ", one E for all" if len(laws) > 1 and len({law.E for law in laws}) == 1 else ""
    own: dict[str, tuple[str, Table]] = {
        "tuned": ("Tuned runs", tuned_table(analysis.opts, analysis.tuned, address)),
        "saved": (f"Compute saved against {analysis.baseline}", saved_table(analysis, address)),
        "laws": (f"Laws of the final loss, {formula}{shared}", law_table(analysis)),
        "lr-laws": ("Laws of the best learning rate, a (b + P)^d", lr_law_table(analysis)),
        "predicted": ("Learning rates by these laws", predicted_table(analysis)),
    }
    tables: dict[str, tuple[str, Table]] = {}
    studies = [(study.tables_before, study.tables(analysis, address, folder)) for study in all_studies()]
    for name in (*own, ""):
        for before, more in studies:
            tables |= more if before == name else {}
        tables |= {name: own[name]} if name else {}
    return tables


def headline_table(data: ReportData) -> Table:
    """A line for each contender at the largest size that the baseline ran too."""
    lines = []
    for each in headlines(data):
        interval = interval_words(data.analysis.saved[each.opt][each.params].interval)
        lines.append([each.opt, each.answer, interval, f"{each.params:,}", each.seeds, each.trials])
    against = f"compute saved against {data.analysis.baseline}"
    return ["optimizer", against, "95% interval", "parameters", "seeds", "learning rates"], lines


def tuned_table(opts: Sequence[str], tuned: Sequence[Tuned], address: Address | None = None) -> Table:
    """A line for each optimizer and rung: its best learning rate (marked where it is the outermost one tried),
    how many settings were tried, its loss over seeds; the batch [sequences] where there are several."""
    several = len({each.batch for each in tuned}) > 1
    lines = [
        [
            opt, f"{each.params:,}", f"{each.flops:.3g}", *([str(each.batch)] if several else []),
            f"{each.lr:.3g}{f' ({each.bracket})' if each.bracket else ''}", str(each.trials),
            _linked(f"{each.loss:.4f}", each.runs, address), or_dash(each.spread, ".4f"), _seeds(each.runs, address),
        ]
        for opt in opts for each in tuned if each.opt == opt
    ]  # fmt: skip
    names = ["optimizer", "parameters", "FLOPs", *(["batch"] if several else []), "peak lr", "trials", "val loss"]
    return [*names, "sd over seeds", "seeds"], lines


def saved_table(analysis: Analysis, address: Address | None = None) -> Table:
    """A line for each contender and size, one for each contender over all sizes by the laws, and the baseline's."""
    base = analysis.baseline
    lines: list[list[str]] = []
    at = {(each.opt, each.params): each for each in analysis.tuned}
    for opt in analysis.opts[1:]:
        for params, saved in sorted(analysis.saved.get(opt, {}).items()):
            mine, theirs = at[opt, params], at[base, params]
            lines.append([
                opt, f"{params:,}", _linked(saved_words(saved), mine.runs, address), interval_words(saved.interval),
                saved_words(analysis.tokens_saved[opt][params]),
                "" if saved.behind is None else f"{saved.behind:.0%}", _seeds(mine.runs, address),
                _seeds(theirs.runs, address), tuning_words(mine, theirs),
            ])  # fmt: skip
        if (gain := analysis.gains.get(opt)) is not None:
            of = [extent(analysis, each) for each in (opt, base)]
            lines.append([opt, "all, by the laws", gain_words(gain), interval_words(gain.interval), "", "", *of, ""])
    for params, saved in analysis.resolution.items():
        seeds = _seeds(at[base, params].runs, address)
        words = [saved_words(saved), interval_words(saved.interval), saved_words(saved)]
        lines.append([f"{base} itself", f"{params:,}", *words, "", seeds, seeds, ""])
    headings = ["optimizer", "parameters", "compute saved", "95% interval", "tokens saved",
                f"where {base} was there", "seeds",
                f"{base}'s seeds", "trials"]  # fmt: skip
    return headings, lines


def law_table(analysis: Analysis) -> Table:
    """A line for each optimizer's loss law, with the sizes, seeds and epochs that it was fitted to."""
    lines = []
    for opt, law in analysis.loss_laws.items():
        bounds = {name: f" ({span(interval, '.4g')})" for name, interval in law.intervals.items()}
        cells = [f"{value:.4g}{bounds.get(name, '')}" for name, value in law.coefficients.items()]
        runs = Linked(str(len(law.residuals)), f"#runs-{opt}")
        lines.append([opt, *cells, f"{law.r2:.5f}", runs, extent(analysis, opt)])
    names = list(next(iter(analysis.loss_laws.values())).coefficients) if analysis.loss_laws else []
    return ["optimizer", *names, "R2 of log loss", "runs", "of"], lines


def lr_law_table(analysis: Analysis) -> Table:
    """A line for each optimizer's learning-rate law, lr = a (b + P)^d."""
    lines = [
        [opt, *(f"{value:.4g}" for value in (law.a, law.b, law.d)), str(law.n_sizes),
         Linked(str(law.n_trials), f"#runs-{opt}")]
        for opt, law in analysis.lr_laws.items()
    ]  # fmt: skip
    return ["optimizer", "a", "b", "d", "sizes", "trials"], lines


def cost_table(data: ReportData) -> Table:
    """Device-hours of each optimizer's runs, as logged, evaluation apart; with a price, the cost."""
    price, ratios = data.dollars_per_hour, relative_time(data)
    lines = [
        [
            opt, ", ".join(sorted(mine.devices)), Linked(str(mine.runs), f"#runs-{opt}"),
            *(f"{hours:.3g}" for hours in mine.hours.values()), f"{mine.total:.3g}", or_dash(ratios.get(opt), ".2f"),
            *([] if price is None else [f"{mine.total * price:.2f}"]),
        ]
        for opt, mine in spent(data).items()
    ]  # fmt: skip
    priced = [] if price is None else [f"cost at {price:g} $/h"]
    hours = ["hours of trials", "of the chosen rate", "of failed runs", "device-hours"]
    return ["optimizer", "device", "runs", *hours, f"time per token / {data.analysis.baseline}'s", *priced], lines


def runs_table(rows: Sequence[Row], address: Address) -> Table:
    """A line for each run, finished or not."""
    lines = [
        [
            row["opt"], Linked(row["name"], address(row)), f"{row['params']:,}", or_dash(row.get("lr"), ".3g"),
            str(row["seed"]), f"{row['final_loss']:.4f}" if is_usable(row) else status_words(row),
            f"{hours_of(row):.3g}",
        ]
        for row in rows
    ]  # fmt: skip
    return ["optimizer", "run", "parameters", "peak lr", "seed", "val loss", "device-hours"], lines


def failed_table(rows: Sequence[Row], address: Address) -> Table:
    """A line for each of these runs, which did not end with a finite loss."""
    lines = [
        [row["opt"], Linked(row["name"], address(row)), or_dash(row.get("lr"), ".3g"), status_words(row)]
        for row in rows
    ]
    return ["optimizer", "run", "peak lr", "what happened"], lines


def predicted_table(analysis: Analysis) -> Table:
    """A line for each optimizer and size: the law's learning rate, its interval, and the cost of its farther end."""
    lines = []
    for opt, rates in analysis.predicted_rates.items():
        for each in rates:
            is_wide = each.interval is not None and each.interval.high > WIDEST * each.interval.low
            lines.append([
                opt, f"{each.non_emb_params:,.0f}", f"{each.lr:.3g}",
                f"over {WIDEST}-fold" if is_wide else span(each.interval, ".3g", "not known"),
                "extrapolated" if each.extrapolated else "within the sizes measured",
                or_dash(each.loss_increase, "+.4f"),
            ])  # fmt: skip
    return ["optimizer", "parameters (not emb.)", "peak lr", "95% interval", "", "loss at its end"], lines


def status_words(row: Row) -> str:
    """The end of a run without a final loss."""
    words = {"finished": "loss not finite", "nonfinite": "loss not finite, stopped"}
    return words.get(row["status"], str(row["status"]))


def _linked(text: str, runs: Sequence[Row], address: Address | None) -> str:
    return text if address is None else Linked(text, address(runs[0]))


def _seeds(runs: Sequence[Row], address: Address | None) -> str:
    if address is None:
        return str(len(runs))
    return Linked.several([(str(row["seed"]), address(row)) for row in sorted(runs, key=lambda row: row["seed"])])
