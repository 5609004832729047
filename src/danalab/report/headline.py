"""The headline results: compute saved by each optimizer, its scale and its interval."""

from dataclasses import dataclass

from danalab.ladder.fit.statistics import Interval
from danalab.ladder.fit.tuning import Tuned
from danalab.ladder.saving import LEAST_SEEDS, Gain, Saved
from danalab.ladder.studies import Analysis, all_studies
from danalab.report.data import ReportData
from danalab.report.formats import NOT_KNOWN, short

NOT_DETERMINED = "not determined"
LEAST_SHARE = -3.0
"""Below it, at four times the baseline's compute, a share is a division by almost nothing and no measurement."""


@dataclass(frozen=True)
class Headline:
    """One contender at the largest size where the baseline ran too."""

    opt: str
    answer: str
    """A share with its sign; in brackets where the noise is not known."""
    params: int
    """Size of the model."""
    known: str
    """Its interval, or why there is none; where the loss was not reached, the point of comparison."""
    seeds: str
    """Of each side."""
    trials: str
    """Number of learning rates tried on each side, and whose best one is the outermost."""

    @property
    def lines(self) -> tuple[str, ...]:
        """All of it in words."""
        return f"at {short(self.params)} parameters", self.known, f"{self.seeds}; {self.trials}"


def headlines(data: ReportData) -> list[Headline]:
    """An answer for each contender, those that saved most first."""
    analysis = data.analysis
    ranked, baselines = [], analysis.at(analysis.baseline)
    for opt in analysis.opts[1:]:
        both = [each for each in analysis.at(opt) if each.params in {base.params for base in baselines}]
        if not both or (saved := analysis.saved.get(opt, {}).get(both[-1].params)) is None:
            continue
        mine = both[-1]
        same_size = [each for each in baselines if each.params == mine.params]
        base = next((each for each in same_size if each.tokens == mine.tokens), same_size[-1])
        answer = Headline(opt, saved_words(saved), mine.params, known(saved), _seeds(saved), _trials(mine, base))
        ranked.append((saved.saved, answer))
    return [answer for _, answer in sorted(ranked, key=lambda each: -each[0])]


def verdict(analysis: Analysis) -> list[str]:
    """The results in sentences."""
    sentences = []
    for opt in analysis.opts[1:]:
        compared = analysis.saved.get(opt, {}).values()
        if not compared:
            continue
        sizes = {each.params for each in analysis.at(opt)} & {each.params for each in analysis.at(analysis.baseline)}
        reached = sum(each.is_reached for each in compared)
        values = [each.saved for each in compared]
        bounds = dict.fromkeys((share(min(values), 0), share(max(values), 0)))
        digits = 0 if any(each.interval is None for each in compared) else 1
        words = f"{opt} reached {analysis.baseline}'s final loss at {reached} of {len(sizes)} sizes; compute saved: "
        words += f"{' to '.join(bounds)}, mean {share(sum(values) / len(values), digits)}"
        if len(compared) < len(sizes):
            words += f", at the {len(compared)} sizes with curves"
        gain = analysis.gains.get(opt)
        if gain is not None and gain.mean is not None:
            words += f"; by the laws {gain_words(gain)} at equal loss"
            if gain.interval is not None:
                words += f" ({interval_words(gain.interval)})"
        sentences.append(words + ".")
    fewest = min((len(each.runs) for each in analysis.tuned), default=0)
    if fewest < LEAST_SEEDS:
        sentences.append(
            f"Some sizes have {fewest} seed{'s' * (fewest > 1)}: with fewer than {LEAST_SEEDS} the noise is not known."
        )
    trials = {opt: sorted({each.trials for each in analysis.at(opt)}) for opt in analysis.opts}
    what = "Learning-rate trials" if all(map(_is_about_rates, analysis.tuned)) else "Settings tried"
    counted = "; ".join(f"{opt} {' or '.join(map(str, counts))}" for opt, counts in trials.items())
    sentences.append(f"{what} at each size: {counted}.")
    return sentences + remarks(analysis)


def remarks(analysis: Analysis) -> list[str]:
    """Sentences of studies, and on the data."""
    own = [sentence for study in all_studies() for sentence in study.sentences(analysis)]
    return own + [each for each in (entropy_sentence(analysis), epochs_sentence(analysis)) if each is not None]


def caveat(data: ReportData) -> str | None:
    """Where the best learning rate was the outermost one tried, or None."""
    tuned = [each for each in data.analysis.tuned if len(each.rates) > 1]
    edges = [each for each in tuned if each.at_edge]
    if not edges:
        return None
    whose = ", ".join(dict.fromkeys(each.opt for each in edges))
    return (
        f"At {len(edges)} of {len(tuned)} tuned points ({whose}) the best learning rate is the outermost one that was "
        "tried: a better one may lie beyond."
    )


def share(value: float, digits: int = 1) -> str:
    """A share of compute with its sign."""
    return f"{value:+.{digits}%}" if value >= LEAST_SHARE else NOT_DETERMINED


def saved_words(saved: Saved) -> str:
    """The compute saved: whole percents in brackets where the noise is not known; with a bound where the crossing lies
    before the first evaluation."""
    bound = (">= " if saved.is_reached else "<= ") if saved.is_bound else ""
    return f"{bound}{share(saved.saved)}" if saved.interval is not None else f"({bound}{share(saved.saved, 0)})"


def interval_words(interval: Interval | None) -> str:
    """An interval of shares."""
    if interval is None:
        return NOT_KNOWN
    return f"{share(interval.low)} to {share(interval.high)}" if interval.low >= LEAST_SHARE else NOT_DETERMINED


def tuning_words(mine: Tuned, base: Tuned) -> str:
    """Number of settings that each side tried, and the sides whose best learning rate has no neighbour on some side."""
    trials = str(mine.trials) if mine.trials == base.trials else f"{mine.trials}, {base.opt} {base.trials}"
    lacking = {word: [each.opt for each in (mine, base) if each.bracket == word] for word in ("edge", "one rate")}
    return "; ".join([trials, *(f"{word}: {', '.join(opts)}" for word, opts in lacking.items() if opts)])


def gain_words(gain: Gain) -> str:
    """The compute saved by two fits: the laws, and interpolation between the sizes."""
    if gain.mean is None:
        return "no loss in common"
    digits = 0 if gain.interval is None else 1
    between = "" if gain.interpolated is None else f" (interpolated {share(gain.interpolated, digits)})"
    return share(gain.mean, digits) + between


def extent(analysis: Analysis, opt: str) -> str:
    """What an optimizer's law was fitted to: sizes, seeds, passes over the data."""
    sizes = analysis.at(opt)
    params = [short(each.params) for each in (sizes[0], sizes[-1])]
    seeds = [len(each.runs) for each in sizes]
    epochs = [row["tokens"] / row["data_tokens"] for each in sizes for row in each.runs if row.get("data_tokens")]
    words = [f"{len(sizes)} sizes, {params[0]} to {params[1]}", f"seeds {_between(min(seeds), max(seeds), 'd')}"]
    return "; ".join([*words, *([f"epochs {_between(min(epochs), max(epochs), '.2g')}"] if epochs else [])])


def _between(low: float, high: float, form: str) -> str:
    return f"{low:{form}}" if f"{low:{form}}" == f"{high:{form}}" else f"{low:{form}} to {high:{form}}"


def method(analysis: Analysis) -> str:
    """How the tables of compute saved were made, for their captions."""
    return (
        f"Compute saved is 1 - C/C0 at equal validation loss: {analysis.baseline} spent C0 for its final loss, and the "
        "other optimizer needed C to reach it (where it did not, both are compared at its own final loss). Curves are "
        "means over seeds at the best learning rate that was tried at the size, smoothed over a tenth of their length; "
        f"intervals are 95%, over seeds and the choice of the learning rate, Student's t on log(C/C0). In brackets: "
        f"fewer than {LEAST_SEEDS} seeds of a side, so that the noise is not known. {analysis.baseline} against itself "
        "shows what the comparison cannot resolve. By the laws: with one E for all, and interpolated between the sizes "
        "without a law. Trials: settings tried by each side (one number: by both); edge, one rate: whose best learning "
        f"rate has no neighbour on one side, or none. Compute by the convention {analysis.convention}"
        f"{': of the model and of the optimizer itself' if analysis.convention == 'exact' else ''}."
    )


def known(saved: Saved) -> str:
    """The interval; where the loss was not reached, also the point of comparison."""
    interval = saved.interval
    words = NOT_KNOWN if interval is None else f"{interval.level:.0%} interval {interval_words(interval)}"
    behind = "" if saved.behind is None else f"; ends where the baseline is at {saved.behind:.0%} of its compute"
    return words + behind


def _seeds(saved: Saved) -> str:
    whose = " each" if saved.n_baseline == saved.n_contender else f", the baseline {saved.n_baseline}"
    return f"{saved.n_contender} seed{'s' * (saved.n_contender != 1)}{whose}"


def _trials(mine: Tuned, base: Tuned) -> str:
    what = "learning rate" if _is_about_rates(mine) and _is_about_rates(base) else "setting"
    tried = f"{mine.trials} {what}{'s' * (mine.trials != 1)} tried"
    words = f"{tried} by each" if mine.trials == base.trials else f"{tried}, by the baseline {base.trials}"
    edges = [each.opt for each in (mine, base) if each.at_edge]
    return words + (f"; best at the edge: {', '.join(edges)}" if edges else "")


def _is_about_rates(tuned: Tuned) -> bool:
    """Whether its trials differ in learning rates and in nothing else."""
    return tuned.trials == len(tuned.rates)


def entropy_sentence(analysis: Analysis) -> str | None:
    """E of the laws beside the exact entropy of a generated language; None for other data, or without laws."""
    known = {row.get("entropy") for each in analysis.tuned for row in each.runs}
    entropy = known.pop() if len(known) == 1 else None
    if entropy is None or not analysis.loss_laws:
        return None
    law = next(iter(analysis.loss_laws.values()))
    interval = law.intervals.get("E")
    around = ""
    if interval is not None:
        inside = "contains" if entropy in interval else "does not contain"
        around = f" ({interval.low:.4f} to {interval.high:.4f}), which {inside}"
    return f"E of the law is {law.E:.4f}{around or ','} the exact entropy of the data, {entropy:.4f} nats/token."


def epochs_sentence(analysis: Analysis) -> str | None:
    """Passes over the data, of sizes that see them more than once; None where their size is not in the rows."""
    runs = [row for each in analysis.tuned for row in each.runs if row.get("data_tokens")]
    epochs = {row["params"]: row["tokens"] / row["data_tokens"] for row in sorted(runs, key=lambda row: row["tokens"])}
    repeated = {params: passes for params, passes in epochs.items() if passes > 1}
    if not repeated or len(epochs) == 1:
        return f"Runs see up to {max(epochs.values()):.2g} epochs of the data." if epochs else None
    where = ", ".join(f"{passes:.2g} at {short(params)}" for params, passes in sorted(repeated.items()))
    return f"Runs see more than one epoch of the data at {len(repeated)} of {len(epochs)} sizes: {where} parameters."
