"""The tables of a ladder with several horizons: exponents, token multipliers, tests of pairs, budgets."""

from collections.abc import Sequence
from statistics import median

from danalab.ladder.analysis import Analysis
from danalab.ladder.fit.statistics import Interval
from danalab.ladder.horizon.analysis import REFERENCES, HorizonAnalysis
from danalab.ladder.horizon.budget import Budget
from danalab.ladder.horizon.paired import POWER, PairedTest
from danalab.report.tables.formats import Table

NOT_KNOWN = "noise not known"
_BOUND = 1000
"""Multipliers beyond it are given as bounds: near the loss that the baseline never reaches they mean nothing."""
TITLES = {
    "horizon-exponents": "Equivalent overtraining: the loss at horizon f is the baseline's at C f^p",
    "horizon-multipliers": "Token multiplier: the baseline's tokens at equal loss over the optimizer's",
    "horizon-pairs": "Pairs of optimizers at their longest horizon of each size, paired by seed",
    "horizon-budgets": "Budgets: settings tried by each optimizer on each rung",
}


def horizon_tables(found: Analysis) -> list[tuple[str, Table]]:
    """(title, table) of each; empty where there is one horizon."""
    return [(TITLES[name], table) for name, table in named_tables(found).items()]


def named_tables(found: Analysis) -> dict[str, Table]:
    """Name -> table; without lines where there is one horizon."""
    if found.horizon is None:
        return {name: ([], []) for name in TITLES}
    makers = (exponent_table, multiplier_table, pair_table, budget_table)
    return {name: make(found.horizon) for name, make in zip(TITLES, makers, strict=True)}


def exponent_table(found: HorizonAnalysis) -> Table:
    """A line for each contender: its exponent, and which references the interval contains."""
    lines = []
    for opt, each in found.exponents.items():
        known = each.interval
        inside = ["-" if known is None else "yes" if value in known else "no" for value in REFERENCES]
        lines.append([opt, f"{each.value:.3f}", interval_words(known, 3), *inside])
    asked = [f"{value:g} inside" for value in REFERENCES]
    return ["optimizer", "p", "95% interval", *asked], lines


def multiplier_table(found: HorizonAnalysis) -> Table:
    """A line for each contender, size and horizon."""
    losses = {(each.opt, each.params, each.horizon): each.losses for each in found.points}
    lines = []
    for each in sorted(found.multipliers, key=lambda each: (each.params, each.horizon, each.opt)):
        mine = losses[each.opt, each.params, each.horizon]
        base = losses[found.baseline, each.params, each.horizon]
        beyond = " (extrapolated)" if each.extrapolated else ""
        lines.append([
            each.opt, f"{each.params:,}", f"{each.horizon:.3g}", f"{_mean(mine):.4f}", f"{_mean(base):.4f}",
            f"{times(each.value)}{beyond}", _times_interval(each.interval), str(len(mine)),
        ])  # fmt: skip
    base = found.baseline
    return ["optimizer", "parameters", "f", "loss", f"{base}'s loss", "multiplier", "95% interval", "seeds"], lines


def pair_table(found: HorizonAnalysis) -> Table:
    """A line for each pair and size, at the longest horizon that both have."""
    longest: dict[tuple[str, str, int], PairedTest] = {}
    for each in sorted(found.tests, key=lambda each: each.horizon):
        longest[each.first, each.second, each.params] = each
    chosen = longest.values()
    lines = [_pair(each) for each in sorted(chosen, key=lambda each: each.params)]
    needed = f"seeds for {POWER:.0%} power"
    return ["pair", "parameters", "f", "difference [nats]", "95% interval", "p value", "seeds", needed], lines


def budget_table(found: HorizonAnalysis) -> Table:
    """A line for each optimizer: trials on a rung, dials with their median worth, best values at an edge."""
    lines = []
    for opt in dict.fromkeys(each.opt for each in found.budgets):
        mine = [each for each in found.budgets if each.opt == opt]
        edges = [f"f={each.horizon:.3g} {each.params:,}: {', '.join(each.edges)}" for each in mine if each.edges]
        lines.append([
            opt, _range([each.trials for each in mine]), _range([each.seeds for each in mine]), str(len(mine)),
            ", ".join(_worth(mine)), "; ".join(edges) or "none",
        ])  # fmt: skip
    return ["optimizer", "settings tried", "seeds", "rungs", "dials (worth, nats)", "best at an edge"], lines


def budget_sentence(found: HorizonAnalysis) -> str:
    """Whether budgets were equal, and how many best values lie at an edge."""
    edges = sum(bool(each.edges) for each in found.budgets)
    equal = "Every optimizer had the same number of trials on the same number of dials on each rung" if (
        found.equal_budgets
    ) else "Budgets differ between optimizers on some rung"  # fmt: skip
    return f"{equal}; at {edges} of {len(found.budgets)} tuned points a best value lies at the edge of its grid."


def times(value: float) -> str:
    """A token multiplier with three digits, or a bound."""
    if value > _BOUND or value < 1 / _BOUND:
        return f"> {_BOUND:,}" if value > 1 else f"< 1/{_BOUND:,}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _times_interval(interval: Interval | None) -> str:
    return NOT_KNOWN if interval is None else f"{times(interval.low)} to {times(interval.high)}"


def interval_words(interval: Interval | None, digits: int) -> str:
    """An interval as text."""
    return NOT_KNOWN if interval is None else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def _pair(test: PairedTest) -> list[str]:
    known = NOT_KNOWN
    if test.interval is not None:
        known = f"{test.interval.low:+.4f} to {test.interval.high:+.4f}"
    return [
        f"{test.first} - {test.second}", f"{test.params:,}", f"{test.horizon:.3g}", f"{test.difference:+.4f}", known,
        "-" if test.p_value is None else f"{test.p_value:.2g}", str(test.n_seeds),
        "-" if test.seeds_needed is None else str(test.seeds_needed),
    ]  # fmt: skip


def _worth(budgets: Sequence[Budget]) -> list[str]:
    names = dict.fromkeys(dial.name for each in budgets for dial in each.dials)
    worth = {name: [dial.worth for each in budgets for dial in each.dials if dial.name == name] for name in names}
    return [f"{name} {median(values):.4f}" for name, values in worth.items()]


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)
