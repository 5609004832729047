"""The tables of a ladder, as headings and lines of text: for the terminal, Markdown, LaTeX and CSV alike."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from danalab.ladder.analysis import Analysis
from danalab.ladder.batch import RISE, BatchAnalysis, CriticalBatch
from danalab.ladder.fit.rate_laws import ExponentLaw
from danalab.ladder.fit.statistics import Interval
from danalab.ladder.fit.tuning import Tuned
from danalab.ladder.horizon import REFERENCES, HorizonAnalysis
from danalab.ladder.paired import POWER, PairedTest
from danalab.ladder.preregistration import PredictionOutcome
from danalab.report.data import ReportData, Row, hours_of, is_finished, relative_time, spent
from danalab.report.formats import Linked, Table
from danalab.report.headline import (
    NOT_KNOWN,
    extent,
    gain_words,
    headlines,
    interval_words,
    saved_words,
    tuning_words,
)

Address = Callable[[Row], str]
"""Where a run's folder is, from where the table is read."""
WIDEST = 1000  # intervals of learning rates wider than this factor are shown without numbers
_BOUND = 100  # token multipliers beyond it are given as bounds: their digits are those of one processor


_LAWS = {
    "saturated": "E + A C^-alpha",
    "broken": "E + A C^-alpha + B C^-beta",
    "chinchilla": "E + A N^-alpha + B D^-beta",
}


def analysis_tables(
    analysis: Analysis, outcomes: Sequence[PredictionOutcome] = (), address: Address | None = None
) -> dict[str, tuple[str, Table]]:
    """Name -> (title, table) of everything that was fitted; a result that is missing has no lines."""
    laws, horizon = list(analysis.loss_laws.values()), analysis.horizon
    batches = analysis.batches or BatchAnalysis([], [], [])
    formula = _LAWS[laws[0].kind] if laws else ""
    shared = ", one E for all" if len(laws) > 1 and len({law.E for law in laws}) == 1 else ""
    tables: dict[str, tuple[str, Table]] = {
        "tuned": ("Tuned runs", tuned_table(analysis.opts, analysis.tuned, address)),
        "batches": (
            "Tuned runs of all batches [sequences per step] at equal tokens",
            tuned_table(analysis.opts, batches.tuned, address),
        ),
        "critical-batch": (
            f"Critical batch [sequences]: the loss is {RISE:.0%} above that of small batches",
            critical_table(batches.critical),
        ),
        "batch-pairs": ("Pairs of optimizers at each batch, paired by seed", tests_table(batches.tests)),
        "saved": (f"Compute saved against {analysis.baseline}", saved_table(analysis, address)),
    }
    for name, title, table in (
        ("exponents", "Equivalent overtraining: the loss at horizon f is the baseline's at C f^p", exponent_table),
        ("multipliers", "Token multiplier: the baseline's tokens at equal loss over the optimizer's", multiplier_table),
        ("pairs", "Pairs of optimizers at their longest horizon of each size, paired by seed", pair_table),
        ("budgets", "Budgets: settings tried by each optimizer on each rung", budget_table),
    ):
        tables[f"horizon-{name}"] = (title, ([], []) if horizon is None else table(horizon))
    return tables | {
        "laws": (f"Laws of the final loss, {formula}{shared}", law_table(analysis)),
        "registered": (
            "Preregistered: predicted from the other sizes and lengths before the largest one ran",
            registered_table(outcomes),
        ),
        "lr-laws": ("Laws of the best learning rate, a (b + P)^d", lr_law_table(analysis)),
        "predicted": ("Learning rates by these laws", predicted_table(analysis)),
        "rate-exponents": (
            "Exponents of the best learning rate: parameters P, horizon f, tokens per step T",
            exponents_table(analysis.rate_exponents),
        ),
        "decay-exponents": (
            "Exponents of the best strength of weight decay omega", exponents_table(analysis.decay_exponents)
        ),
        "tolerance": ("Learning rates that lose little", tolerance_table(analysis)),
        "shared-curvature": (
            "Cost of a wrong learning rate [nats/token], one curvature for all sizes", shared_curvature_table(analysis)
        ),
    }  # fmt: skip


def headline_table(data: ReportData) -> Table:
    """A line for each contender at the largest size that the baseline ran too."""
    lines = []
    for each in headlines(data):
        interval = each.known.replace("95% interval ", "").partition(";")[0]
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
            _linked(f"{each.loss:.4f}", each.runs, address), _or_dash(each.spread, ".4f"), _seeds(each.runs, address),
        ]
        for opt in opts for each in tuned if each.opt == opt
    ]  # fmt: skip
    names = ["optimizer", "parameters", "FLOPs", *(["batch"] if several else []), "peak lr", "trials", "val loss"]
    return [*names, "sd over seeds", "seeds"], lines


def critical_table(critical: Sequence[CriticalBatch]) -> Table:
    """A line for each optimizer, size and horizon; a bound where the batch is beyond those measured."""
    lines = []
    for each in critical:
        least, most = each.measured
        words = f"> {most}" if each.batch > most else f"< {least}" if each.batch < least else f"{each.batch:.0f}"
        span = _span(each.interval, ".0f")
        lines.append([each.opt, f"{each.params:,}", f"{each.horizon:.3g}", words, span, f"{least} to {most}"])
    return ["optimizer", "parameters", "f", "critical batch", "95% interval", "batches measured"], lines


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
        bounds = {name: f" ({_span(interval, '.4g')})" for name, interval in law.intervals.items()}
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


def exponents_table(laws: Mapping[str, ExponentLaw]) -> Table:
    """A line for each optimizer: the exponent of each axis that varied, with its interval."""
    names = [name for name in "PfT" if any(name in law.exponents for law in laws.values())]
    lines = [
        [
            opt,
            *(
                "-" if name not in law.exponents
                else f"{law.exponents[name]:.2f} ({_span(law.intervals.get(name), '.2f')})" for name in names
            ),
            str(law.n_rungs), str(law.n_at_edge),
        ]
        for opt, law in laws.items()
    ]  # fmt: skip
    return ["optimizer", *(f"of {name} (95% interval)" for name in names), "rungs", "best at an edge"], lines


def cost_table(data: ReportData) -> Table:
    """Device-hours of each optimizer's runs, as logged, evaluation apart; with a price, the cost."""
    price, ratios = data.dollars_per_hour, relative_time(data)
    lines = [
        [
            opt, ", ".join(sorted(mine.devices)), Linked(str(mine.runs), f"#runs-{opt}"),
            *(f"{hours:.3g}" for hours in mine.hours.values()), f"{mine.total:.3g}", _or_dash(ratios.get(opt), ".2f"),
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
            row["opt"], Linked(row["name"], address(row)), f"{row['params']:,}", _or_dash(row.get("lr"), ".3g"),
            str(row["seed"]), f"{row['final_loss']:.4f}" if is_finished(row) else status_words(row),
            f"{hours_of(row):.3g}",
        ]
        for row in rows
    ]  # fmt: skip
    return ["optimizer", "run", "parameters", "peak lr", "seed", "val loss", "device-hours"], lines


def failed_table(rows: Sequence[Row], address: Address) -> Table:
    """A line for each of these runs, which did not end with a finite loss."""
    lines = [
        [row["opt"], Linked(row["name"], address(row)), _or_dash(row.get("lr"), ".3g"), status_words(row)]
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
                f"over {WIDEST}-fold" if is_wide else _span(each.interval, ".3g", "not known"),
                "extrapolated" if each.extrapolated else "within the sizes measured",
                _or_dash(each.loss_increase, "+.4f"),
            ])  # fmt: skip
    return ["optimizer", "parameters (not emb.)", "peak lr", "95% interval", "", "loss at its end"], lines


def tolerance_table(analysis: Analysis) -> Table:
    """A line for each optimizer and size: the learning rates within a share of the best loss. A bound with <= or >=
    is the outermost rate tried: the interval may extend beyond it."""
    lines, within = [], 0.0
    for opt, sizes in analysis.tolerances.items():
        for params, each in sorted(sizes.items()):
            within = 100 * each.within
            own = analysis.curvatures.get(opt, {}).get(params)
            lines.append([
                opt, f"{params:,}", str(each.n_rates), f"{each.best_lr:.3g}",
                f"{'<= ' if each.low_is_open else ''}{each.low:.3g}",
                f"{'>= ' if each.high_is_open else ''}{each.high:.3g}", _or_dash(own and own.curvature, ".4f"),
            ])  # fmt: skip
    return ["optimizer", "parameters", "rates", "best", f"lowest within {within:.3g}%", "highest", "curvature"], lines


def shared_curvature_table(analysis: Analysis) -> Table:
    """A line for each optimizer: the curvature of the loss in log lr that its sizes share, and the cost of factors.

    Where the interval of the curvature reaches 0, its costs are not known.
    """
    lines = [
        [
            opt, f"{each.curvature:.4f}", _span(each.interval, ".4f"),
            *(f"{each.loss_increase(factor):+.4f}" if each.is_known else "not known" for factor in (1.2, 1.5, 2.0)),
            str(each.n_sizes), str(each.n_rates),
        ]
        for opt, each in analysis.shared_curvatures.items()
    ]  # fmt: skip
    return ["optimizer", "curvature", "95% interval", "lr 1.2x off", "1.5x", "2x", "sizes", "rates"], lines


def registered_table(outcomes: Sequence[PredictionOutcome]) -> Table:
    """A line for each optimizer."""
    lines = [
        [
            made.opt, f"{made.params:,}", f"{made.tokens:,}", f"{made.loss:.4f}", _span(made.interval, ".4f"),
            "not yet" if each.loss is None else f"{each.loss:.4f}", _yes_or_no(each.is_inside),
        ]
        for each in outcomes for made in [each.prediction]
    ]  # fmt: skip
    return ["optimizer", "parameters", "tokens", "predicted loss", "95% interval", "measured", "inside"], lines


def exponent_table(horizon: HorizonAnalysis) -> Table:
    """A line for each contender: its exponent, and which references the interval contains."""
    lines = []
    for opt, each in horizon.exponents.items():
        inside = [_yes_or_no(each.interval and not each.interval.excludes(value)) for value in REFERENCES]
        lines.append([opt, f"{each.value:.3f}", _span(each.interval, ".3f"), *inside])
    return ["optimizer", "p", "95% interval", *(f"{value:g} inside" for value in REFERENCES)], lines


def multiplier_table(horizon: HorizonAnalysis) -> Table:
    """A line for each contender, size and horizon."""
    losses = {(each.opt, each.params, each.horizon): each.losses for each in horizon.points}
    lines = []
    for each in sorted(horizon.multipliers, key=lambda each: (each.params, each.horizon, each.opt)):
        mine, theirs = (losses[opt, each.params, each.horizon] for opt in (each.opt, horizon.baseline))
        interval = each.interval
        lines.append([
            each.opt, f"{each.params:,}", f"{each.horizon:.3g}", f"{fmean(mine):.4f}", f"{fmean(theirs):.4f}",
            times(each.value) + (" (extrapolated)" if each.extrapolated else ""),
            NOT_KNOWN if interval is None else f"{times(interval.low)} to {times(interval.high)}", str(len(mine)),
        ])  # fmt: skip
    base = horizon.baseline
    return ["optimizer", "parameters", "f", "loss", f"{base}'s loss", "multiplier", "95% interval", "seeds"], lines


def pair_table(horizon: HorizonAnalysis) -> Table:
    """A line for each pair and size, at the longest horizon that both have."""
    longest: dict[tuple[str, str, int], PairedTest] = {}
    for test in sorted(horizon.tests, key=lambda test: test.horizon):
        longest[test.first, test.second, test.params] = test
    return tests_table(sorted(longest.values(), key=lambda test: test.params))


def tests_table(tests: Sequence[PairedTest]) -> Table:
    """A line for each test, with the batch where there are several."""
    several = len({test.batch for test in tests}) > 1
    lines = [
        [
            f"{test.first} - {test.second}", f"{test.params:,}", f"{test.horizon:.3g}",
            *([str(test.batch)] if several else []), f"{test.difference:+.4f}",
            _span(test.interval, "+.4f"), _or_dash(test.p_value, ".2g"), str(test.n_seeds),
            _or_dash(test.seeds_needed, "d"),
        ]
        for test in tests
    ]  # fmt: skip
    needed, batch = f"seeds for {POWER:.0%} power", ["batch"] if several else []
    return ["pair", "parameters", "f", *batch, "difference [nats]", "95% interval", "p value", "seeds", needed], lines


def budget_table(horizon: HorizonAnalysis) -> Table:
    """A line for each optimizer: trials on a rung, dials with their median gain, best values at an edge."""
    lines = []
    for opt in dict.fromkeys(each.opt for each in horizon.budgets):
        mine = [each for each in horizon.budgets if each.opt == opt]
        edges = [f"f={each.horizon:.3g} {each.params:,}: {', '.join(each.edges)}" for each in mine if each.edges]
        gains: dict[str, list[float]] = {}
        for dial in (dial for each in mine for dial in each.dials):
            gains.setdefault(dial.name, []).append(dial.gain)
        lines.append([
            opt, _range([each.trials for each in mine]), _range([each.seeds for each in mine]), str(len(mine)),
            ", ".join(f"{name} {median(values):.4f}" for name, values in gains.items()), "; ".join(edges) or "none",
        ])  # fmt: skip
    return ["optimizer", "settings tried", "seeds", "rungs", "dials (gain, nats)", "best at an edge"], lines


def times(value: float) -> str:
    """A token multiplier with three digits, or a bound: near the loss that the baseline never reaches it means
    nothing."""
    if value > _BOUND or value < 1 / _BOUND:
        return f"> {_BOUND:,}" if value > 1 else f"< 1/{_BOUND:,}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


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


def _span(interval: Interval | None, form: str, unknown: str = NOT_KNOWN) -> str:
    return unknown if interval is None else f"{interval.low:{form}} to {interval.high:{form}}"


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _yes_or_no(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"
