"""The report of a ladder: report.md, whose first lines are the answer, figures in two themes, one CSV, analysis.json.

report.md            the answer, the tables, what is not known
NAME.png, .svg       the figures, and NAME-dark.png, NAME-dark.svg
runs.csv             a line per run
analysis.json        every number
"""

import math
from collections.abc import Sequence
from pathlib import Path

from danalab.experiments.analysis import Analysis
from danalab.experiments.figures import FIGURES
from danalab.experiments.formats import NOT_KNOWN, Table, as_csv, as_markdown, or_dash, short, span
from danalab.experiments.horizon import (
    budget_sentence,
    budget_table,
    exponent_table,
    multiplier_table,
)
from danalab.experiments.paired import pair_table
from danalab.experiments.rows import Row
from danalab.experiments.saving import LEAST_SEEDS, Gain, Saved
from danalab.experiments.statistics import Interval
from danalab.experiments.tuning import Tuned
from danalab.files import write_atomically, write_json

NOT_DETERMINED = "not determined"
LEAST_SHARE = -3.0
"""Below it, at four times the baseline's compute, a share is a division by almost nothing and no measurement."""
_LAWS = {
    "saturated": "E + A C^-alpha",
    "broken": "E + A C^-alpha + B C^-beta",
    "chinchilla": "E + A N^-alpha + B D^-beta",
}


def write_report(found: Analysis, out: Path) -> Path:
    """Write the report into `out`; returns report.md."""
    from danalab.colors import save_figure

    out.mkdir(parents=True, exist_ok=True)
    lines = [*answer(found), "", *remarks(found), ""]
    for title, table in tables(found).items():
        if table[1]:
            caption = method(found) if title == saved_title(found) else ""
            lines += [f"## {title}", "", as_markdown(table, caption)]
    lines += ["## Figures", ""]
    for name, (draw, caption) in FIGURES.items():
        if draw(found) is None:
            continue
        save_figure(lambda draw=draw: draw(found), out / name)  # pyright: ignore[reportArgumentType]
        picture = (
            f'<source media="(prefers-color-scheme: dark)" srcset="{name}-dark.svg"><img src="{name}.svg">'
        )
        lines += [f"<picture>{picture}</picture>", "", caption, ""]
    if found.notes or found.failed:
        lines += ["## What is not known", "", *(f"- {note}" for note in found.notes)]
        ends = {"finished": "loss not finite", "nonfinite": "loss not finite, stopped"}
        lines += [
            f"- run {row['name']}: {ends.get(row['status'], row['status'])}; in no fit"
            for row in found.failed
        ]
    write_atomically(out / "report.md", "\n".join(lines) + "\n")
    write_atomically(out / "runs.csv", as_csv(runs_table(found.rows)))
    write_json(out / "analysis.json", found.as_dict())
    return out / "report.md"


# ---- the answer ----
def answer(found: Analysis) -> list[str]:
    """The result in a sentence for each contender, those that saved most first."""
    ranked = []
    for opt in found.contenders:
        compared = found.saved.get(opt)
        if not compared:
            continue
        values = [each.saved for each in compared.values()]
        mean, gain = sum(values) / len(values), found.gains.get(opt)
        reached = sum(each.is_reached for each in compared.values())
        sizes = f"{len(values)} size{'s' * (len(values) != 1)}"
        words = f"{opt} did not reach {found.baseline}'s final loss at {sizes}"
        if reached:
            bound = "at least " if all(each.is_bound for each in compared.values()) else ""
            words = f"{opt} saves {bound}{share(mean, 0)} of {found.baseline}'s compute at equal loss"
            if len(values) > 1:
                words += f" (mean of {sizes}, {share(min(values), 0)} to {share(max(values), 0)}; "
                words += f"{found.baseline}'s final loss reached at {reached})"
        if gain is not None and gain.mean is not None:
            words += f"; by the fitted laws {share(gain.mean, 0)}"
            words += "" if gain.interval is None else f" ({interval_words(gain.interval)})"
        ranked.append((mean, f"{words}."))
    if not ranked:
        return [f"One optimizer alone, {found.baseline}: nothing is compared."]
    return [words for _, words in sorted(ranked, reverse=True)]


def remarks(found: Analysis) -> list[str]:
    """Sentences on seeds, trials and data, beside the answer."""
    sentences = []
    fewest = min(len(each.runs) for each in found.tuned)
    if fewest < LEAST_SEEDS:
        sentences.append(
            f"Some sizes have {fewest} seed{'s' * (fewest > 1)}: with fewer than {LEAST_SEEDS} there is no interval."
        )
    trials = {opt: sorted({len(each.trials) for each in found.at(opt)}) for opt in found.opts}
    counted = "; ".join(f"{opt} {' or '.join(map(str, counts))}" for opt, counts in trials.items())
    sentences.append(f"Settings tried at each size: {counted}.")
    if found.horizon is not None:
        sentences.append(budget_sentence(found.tuned))
    epochs = {
        each.params: row["tokens"] / row["data_tokens"]
        for each in found.tuned
        for row in each.runs
        if row.get("data_tokens")
    }
    if epochs:
        sentences.append(f"Runs see up to {max(epochs.values()):.2g} epochs of the data.")
    return sentences


def method(found: Analysis) -> str:
    """How the table of compute saved was made, for its caption."""
    own = ": of the model and of the optimizer itself" if found.convention == "exact" else ""
    return (
        f"Compute saved is 1 - C/C0 at equal validation loss: {found.baseline} spent C0 for its final loss, and the "
        "other optimizer needed C to reach it (where it did not, both are compared at its own final loss). Curves are "
        "means over seeds at the best settings, smoothed over a tenth of their length; intervals are 95%, over seeds "
        f"and the choice of the learning rate. In brackets: fewer than {LEAST_SEEDS} seeds of a side. "
        f"{found.baseline} against itself shows what the comparison cannot resolve. By the laws: with one E for all, "
        "and interpolated between the sizes without a law. Trials: settings tried by each side (one number: by both); "
        "edge, one rate: whose best learning rate has no neighbour on one side, or none. Compute by the convention "
        f"{found.convention}{own}."
    )


# ---- tables ----
def saved_title(found: Analysis) -> str:
    return f"Compute saved against {found.baseline}"


def tables(found: Analysis) -> dict[str, Table]:
    """Title -> table of everything that was fitted; a result that is missing has no lines."""
    laws = list(found.loss_laws.values())
    shared = ", one E for all" if len(laws) > 1 and len({law.E for law in laws}) == 1 else ""
    made = {
        saved_title(found): saved_table(found),
        "Tuned runs": tuned_table(found),
        f"Laws of the final loss, {_LAWS[laws[0].kind] if laws else ''}{shared}": law_table(found),
        "Laws of the best learning rate, a (b + P)^d": lr_law_table(found),
    }
    if found.horizon is not None:
        made |= {
            "Equivalent overtraining: the loss at horizon f is the baseline's at C f^p": exponent_table(
                found.horizon
            ),
            "Token multiplier: the baseline's tokens at equal loss over the optimizer's": multiplier_table(
                found.horizon
            ),
            "Pairs of optimizers at their longest horizon, paired by seed": pair_table(found.horizon.tests),
            "Tuning budgets: settings tried by each optimizer": budget_table(found.tuned),
        }
    return made


def saved_table(found: Analysis) -> Table:
    """A line for each contender and size, one for each contender over all sizes by the laws, and the baseline's."""
    base, lines = found.baseline, []
    at = {(each.opt, each.params): each for each in found.tuned}
    for opt in (*found.contenders, base):
        for params, saved in sorted(found.saved.get(opt, {}).items()):
            mine, theirs = at[opt, params], at[base, params]
            name = f"{base} itself" if opt == base else opt
            there = "" if saved.behind is None or opt == base else f"{saved.behind:.0%}"
            lines.append(
                [
                    name,
                    f"{params:,}",
                    saved_words(saved),
                    interval_words(saved.interval),
                    saved_words(found.tokens_saved[opt][params]),
                    there,
                    str(len(mine.runs)),
                    str(len(theirs.runs)),
                    "" if opt == base else tuning_words(mine, theirs),
                ]
            )
        if (gain := found.gains.get(opt)) is not None:
            of = [extent(found, each) for each in (opt, base)]
            lines.append(
                [opt, "all, by the laws", gain_words(gain), interval_words(gain.interval), "", "", *of, ""]
            )
    headings = ["optimizer", "parameters", "compute saved", "95% interval", "tokens saved"]
    return [*headings, f"{base} got there at", "seeds", f"{base}'s seeds", "trials"], lines


def tuned_table(found: Analysis) -> Table:
    """A line for each optimizer and rung: its best learning rate (marked where it is the outermost one tried),
    how many settings were tried, its loss over seeds."""
    lines = [
        [
            each.opt,
            f"{each.params:,}",
            f"{each.flops:.3g}",
            f"{each.lr:.3g}{f' ({each.bracket})' if each.bracket else ''}",
            str(len(each.trials)),
            f"{each.loss:.4f}",
            or_dash(each.spread, ".4f"),
            str(len(each.runs)),
        ]
        for opt in found.opts
        for each in found.at(opt)
    ]
    return [
        "optimizer",
        "parameters",
        "FLOPs",
        "peak lr",
        "trials",
        "val loss",
        "sd over seeds",
        "seeds",
    ], lines


def law_table(found: Analysis) -> Table:
    """A line for each optimizer's loss law, with the sizes, seeds and epochs that it was fitted to."""
    lines = []
    for opt, law in found.loss_laws.items():
        bounds = {name: f" ({span(known, '.4g')})" for name, known in law.intervals.items()}
        cells = [f"{value:.4g}{bounds.get(name, '')}" for name, value in law.coefficients.items()]
        lines.append([opt, *cells, f"{law.r2:.5f}", str(len(law.residuals)), extent(found, opt)])
    names = list(next(iter(found.loss_laws.values())).coefficients) if found.loss_laws else []
    return ["optimizer", *names, "R2 of log loss", "runs", "of"], lines


def lr_law_table(found: Analysis) -> Table:
    """A line for each optimizer's learning-rate law."""
    lines = [
        [opt, *(f"{value:.4g}" for value in (law.a, law.b, law.d)), str(law.n_sizes), str(law.n_trials)]
        for opt, law in found.lr_laws.items()
    ]
    return ["optimizer", "a", "b", "d", "sizes", "trials"], lines


def runs_table(rows: Sequence[Row]) -> Table:
    """A line for each run, finished or not."""
    names = (
        "name",
        "opt",
        "params",
        "lr",
        "lr_multiplier",
        "seed",
        "batch",
        "tokens",
        "flops",
        "optimizer_flops",
        "final_loss",
        "status",
        "device_hours",
    )
    return names, [["" if row.get(name) is None else str(row[name]) for name in names] for row in rows]


# ---- words of numbers ----
def share(value: float, digits: int = 1) -> str:
    """A share of compute with its sign."""
    return f"{value:+.{digits}%}" if value >= LEAST_SHARE else NOT_DETERMINED


def saved_words(saved: Saved) -> str:
    """The compute saved: whole percents in brackets where the noise is not known; with a bound where the crossing lies
    before the first evaluation."""
    bound = (">= " if saved.is_reached else "<= ") if saved.is_bound else ""
    return (
        f"{bound}{share(saved.saved)}" if saved.interval is not None else f"({bound}{share(saved.saved, 0)})"
    )


def interval_words(known: Interval | None) -> str:
    """An interval of shares."""
    if known is None:
        return NOT_KNOWN
    if not math.isfinite(known.low) or known.low < LEAST_SHARE:
        return NOT_DETERMINED
    return f"{share(known.low)} to {share(known.high)}"


def tuning_words(mine: Tuned, base: Tuned) -> str:
    """Number of settings that each side tried, and the sides whose best learning rate has no neighbour on some side."""
    ours, theirs = len(mine.trials), len(base.trials)
    words = [str(ours) if ours == theirs else f"{ours}, {base.opt} {theirs}"]
    for lack in ("edge", "one rate"):
        if opts := [each.opt for each in (mine, base) if each.bracket == lack]:
            words.append(f"{lack}: {', '.join(opts)}")
    return "; ".join(words)


def gain_words(gain: Gain) -> str:
    """The compute saved by two fits: the laws, and interpolation between the sizes."""
    if gain.mean is None:
        return "no loss in common"
    digits = 0 if gain.interval is None else 1
    between = "" if gain.interpolated is None else f" (interpolated {share(gain.interpolated, digits)})"
    return share(gain.mean, digits) + between


def extent(found: Analysis, opt: str) -> str:
    """What an optimizer's law was fitted to: sizes, seeds."""
    sizes = found.at(opt)
    params = [short(each.params) for each in (sizes[0], sizes[-1])]
    seeds = sorted({len(each.runs) for each in sizes})
    return f"{len(sizes)} sizes, {params[0]} to {params[1]}; seeds {' or '.join(map(str, seeds))}"
