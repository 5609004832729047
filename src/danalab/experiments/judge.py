"""Is B better than A? Rates tuned alike, paired seeds, and a test that may stop at any time.

    rates    `trials` runs of each side with seed 0; its best rate is kept. Seed 0 judges nothing.
    pairs    seed by seed, both sides from the same weights and data; d = loss(B) - loss(A)
    stop     when the interval of the mean of d excludes 0 or lies within +- difference, or the budget is spent

The test assumes that d is normal, with unknown mean m and deviation s. The effect m / s has a Gaussian prior N(0, g), s
the scale-invariant prior ds / s; the Bayes factor against m = m0 depends on Student's t alone:

    t = sqrt(n) (mean - m0) / sd        r = 1 / (1 + n g)        v = n - 1
    B_n(m0) = sqrt(r) ((1 + t^2 / v) / (1 + r t^2 / v))^(n / 2)

Under m = m0 it is a nonnegative martingale of mean 1, so it reaches 1 / alpha at any n with probability alpha at most
(Ville): one may look after each pair and stop for any reason. The interval holds all m0 where B < 1 / alpha. Runs that
are rarely stuck make d far from normal, and the error larger than alpha: the verdict warns of outliers.

Sources: Zellner's g-prior for one mean; an e-process: Perez-Ortiz, Lardy, de Heide & Gruenwald, arXiv 2208.07610.

    LEDGER/judge.jsonl    a line per verdict         LEDGER/runs.jsonl    a line per run, which is not made again
"""

import fcntl
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from danalab import __version__
from danalab.errors import UserError, first_line
from danalab.experiments.cells import comparable
from danalab.experiments.problems import OWN_DATA, SmallProblem, get_problem
from danalab.experiments.saving import compute_saved
from danalab.experiments.settings import JudgeConfig
from danalab.experiments.trials import SPACING, ProblemRun, train, usual_lr, workers
from danalab.files import finite, sound_objects
from danalab.optim import build_optimizer
from danalab.scaling.rate_search import next_exponent
from danalab.tables import source_digest
from danalab.train.config.flags import plain_value

PRIORS = (1.0, 30.0)
"""g: variances of the effect in standard deviations of a pair; B_n is the mean of their Bayes factors. The small one
decides effects of 1 to 3 the soonest, the large one effects of 10 after three pairs."""
LEAST_PAIRS, MOST_PAIRS = 3, 1000
LARGEST_RATIO = 1e12  # of t^2 / (n - 1), for differences that are all equal
OUTLIER = 7.5
"""Median distances from the median: 5 standard deviations if normal."""
LEARNED = 0.98
"""Share of the first loss above which the last is called not learned."""
BETTER, WORSE, EQUAL, UNDECIDED = "better", "worse", "no difference", "undecided"


@dataclass(frozen=True)
class Side:
    """One side of a judgement."""

    label: str
    opt: str
    settings: dict[str, Any]
    digest: str
    """Of what determines its runs: code of one's own, or the package's version; settings."""


def read_side(text: str) -> Side:
    """The side of `NAME:SETTING=VALUE,...`; UserError: no such optimizer or setting."""
    opt, settings = text, {}
    head, colon, tail = text.rpartition(":")
    if colon and "=" in tail:
        opt = head
        for word in tail.split(","):
            name, equals, value = word.partition("=")
            if not equals:
                raise UserError(f"'{text}': '{word}' is no setting; write NAME:SETTING=VALUE,...")
            settings[name.strip().replace("-", "_")] = plain_value(value)
    model = get_problem("images").make(0).model
    build_optimizer(opt, model, **settings)  # refuses what there is not
    code = source_digest(opt) if ":" in opt else f"danalab {__version__}"
    values = {name: comparable(name, value) for name, value in settings.items()}
    what = json.dumps([code, comparable("opt", opt), values], sort_keys=True)
    return Side(text, opt, settings, hashlib.sha256(what.encode()).hexdigest()[:16])


# ---- the test ----
def log_bayes_factor(n: Any, ratio: Any) -> Any:
    """log B_n of t^2 / (n - 1) = ratio, the mean over the priors; numbers or arrays."""
    logs = [
        0.5 * n * (np.log1p(ratio) - np.log1p(ratio / (1 + n * g))) - 0.5 * np.log1p(n * g) for g in PRIORS
    ]
    return np.logaddexp.reduce(logs) - math.log(len(PRIORS))


def interval(differences: Sequence[float], alpha: float) -> tuple[float, float]:
    """The means that the test does not exclude; unbounded where there are too few pairs to say anything."""
    n, least = len(differences), -math.log(alpha)
    if n < LEAST_PAIRS or log_bayes_factor(n, LARGEST_RATIO) < least:
        return -math.inf, math.inf
    low, high = -30.0, math.log(LARGEST_RATIO)  # of log(t^2 / v), in which the evidence grows
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if log_bayes_factor(n, math.exp(middle)) >= least else (middle, high)
    half = math.sqrt(math.exp(high) * (n - 1) / n) * max(stdev(differences), 1e-12)
    return fmean(differences) - half, fmean(differences) + half


def decide(differences: Sequence[float], alpha: float, margin: float) -> str:
    """The decision after these pairs, contender minus baseline."""
    low, high = interval(differences, alpha)
    if -margin <= low and high <= margin:
        return EQUAL
    return BETTER if high < 0 else WORSE if low > 0 else UNDECIDED


def warning_of(differences: Sequence[float]) -> str:
    """What speaks against normal differences; empty: nothing."""
    far = [abs(value - median(differences)) for value in differences]
    stuck = sum(each > OUTLIER * (1 + 8 / len(far)) * median(far) for each in far) if len(far) >= 8 else 0
    return f"{stuck} of {len(far)} pairs lie far from the others: some runs may be stuck" if stuck else ""


# ---- the verdict ----
@dataclass(frozen=True)
class Verdict:
    """The answer to one question."""

    contender: str
    baseline: str
    track: str
    unit: str
    decision: str
    """better, worse, no difference or undecided."""
    effect: float | None
    """Mean of loss(contender) - loss(baseline) over paired seeds; negative is better."""
    low: float | None
    high: float | None
    """Interval of the effect, valid at any time; None: too few pairs."""
    alpha: float
    difference: float
    """Losses that differ by less count as equal."""
    pairs: int
    favouring: int
    """Pairs in which the contender's loss is lower."""
    saved: float | None
    """Share of the baseline's steps that the contender needs less for its final loss; None: it never had that."""
    rates: tuple[float, float]
    """Peak learning rates of baseline and contender."""
    runs: int
    """Runs that were made for it, not read from the ledger."""
    seconds: float
    warning: str

    def lines(self) -> list[str]:
        """The answer in words: the first line is the verdict."""
        first = f"{self.contender} vs {self.baseline} on {self.track}: {self.decision.upper()}"
        if self.effect is None:
            return [f"{first} (no pair of runs ended within the budget)"]
        saved = "-" if self.saved is None else f"{self.saved:.0%}"
        known = "not known yet" if self.low is None else f"[{self.low:+.4f}, {self.high:+.4f}]"
        lines = [
            first + (" (budget used up)" if self.decision == UNDECIDED else ""),
            f"  loss difference {self.effect:+.4f} {self.unit}",
            f"  {1 - self.alpha:.0%} interval {known}, valid at any time if differences are roughly normal",
            f"  {self.favouring} of {self.pairs} seeds favour {self.contender}; steps saved {saved}",
            f"  {self.runs} runs, {self.seconds:.0f} s; learning rates {self.rates[0]:.3g} and {self.rates[1]:.3g}",
        ]
        lines += [f"  warning: {self.warning}"] if self.warning else []
        return lines + (["  rerun with a larger --budget to continue"] if self.decision == UNDECIDED else [])


def judge(config: JudgeConfig, report: Callable[[str], None] = lambda line: None) -> Verdict:
    """The verdict on the contender, from the ledger or made now.

    UserError: an unknown optimizer or track, numbers out of range, or a side that has no finite loss at any rate.
    """
    track = get_problem(
        config.track if config.data is None else OWN_DATA + config.data, config.steps, "track"
    )
    sides = (read_side(config.baseline), read_side(config.contender))
    if sides[0].digest == sides[1].digest:
        raise UserError(f"'{sides[1].label}' is the same optimizer with the same settings as the baseline")
    question = {
        "track": track.name,
        "steps": track.steps,
        "sides": [side.digest for side in sides],
        "difference": config.difference,
        "alpha": config.alpha,
        "trials": config.trials,
    }
    for row in _read_lines(config.ledger / "judge.jsonl"):
        if row.get("question") == question and row["decision"] != UNDECIDED:
            report(f"answered from {config.ledger / 'judge.jsonl'}")
            known = {name: row[name] for name in Verdict.__dataclass_fields__}
            return Verdict(**{**known, "rates": tuple(row["rates"])})
    with workers(config.jobs) as pool:
        verdict = _Judgement(config, track, sides, pool, report).verdict()
    _add_line(
        config.ledger / "judge.jsonl", {"question": question, **asdict(verdict), "danalab": __version__}
    )
    return verdict


class _BudgetSpent(Exception):
    pass


class _Judgement:
    """One question, with the runs of the ledger."""

    def __init__(
        self,
        config: JudgeConfig,
        track: SmallProblem,
        sides: tuple[Side, Side],
        pool: ProcessPoolExecutor,
        report: Callable[[str], None],
    ):
        self._config, self._track, self._sides, self._pool, self._report = config, track, sides, pool, report
        self._began, self._made, self._warnings = time.monotonic(), 0, list[str]()
        rows = _read_lines(config.ledger / "runs.jsonl")
        self._known: dict[str, dict[str, Any]] = {row["run"]: row for row in rows if "run" in row}

    def verdict(self) -> Verdict:
        baseline, contender = self._sides
        differences: list[float] = []
        shares: list[list[float]] = []  # of the first loss
        pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
        losses: list[float] = []
        rates = (math.nan, math.nan)
        try:
            rates = self._tune()
            for seed, base, other in self._pairs(rates):
                start = base["losses"][0]  # a run without a loss counts with the loss that both began with
                losses = [start if run["loss"] is None else run["loss"] for run in (base, other)]
                pairs.append((base, other))
                shares.append([loss / start for loss in losses])
                differences.append(losses[1] - losses[0])
                low, high = interval(differences, self._config.alpha)
                now = f"mean {fmean(differences):+.4f}"
                now += f" [{low:+.4f}, {high:+.4f}]" if math.isfinite(low) else ""
                self._report(
                    f"seed {seed}: {baseline.label} {losses[0]:.4f}, {contender.label} {losses[1]:.4f}; {now}"
                )
                if decide(differences, self._config.alpha, self._config.difference) != UNDECIDED:
                    break
        except _BudgetSpent:
            if math.isnan(rates[0]):
                raise UserError(f"--budget {self._config.budget}: ended before a rate was found") from None
        low, high = interval(differences, self._config.alpha)
        for side, own in zip(self._sides, zip(*shares, strict=True), strict=False):
            if min(own) > LEARNED:
                self._warnings.append(f"{side.label} did not learn: its loss stays where it began")
        if pairs and self._config.difference > max(losses):
            self._warnings.append("--difference is above the losses; give a smaller one")
        return Verdict(
            contender.label,
            baseline.label,
            self._track.name,
            self._track.unit.partition("[")[2].rstrip("]"),
            decide(differences, self._config.alpha, self._config.difference),
            fmean(differences) if differences else None,
            finite(low),
            finite(high),
            self._config.alpha,
            self._config.difference,
            len(pairs),
            sum(each < 0 for each in differences),
            _steps_saved(pairs),
            rates,
            self._made,
            time.monotonic() - self._began,
            "; ".join(filter(None, [*self._warnings, warning_of(differences)])),
        )

    def _pairs(self, rates: tuple[float, float]) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
        """(seed, baseline, contender), as many at a time as there are jobs."""
        at_once = max(1, self._config.jobs // 2)
        for first in range(1, MOST_PAIRS, at_once):
            seeds = range(first, first + at_once)
            runs = self._runs([(i, rates[i], seed) for seed in seeds for i in (0, 1)])
            yield from zip(seeds, runs[::2], runs[1::2], strict=True)

    def _tune(self) -> tuple[float, float]:
        """The best rate of each side among equally many, with seed 0; both sides at a time."""
        starts = [usual_lr(side.opt, self._track) for side in self._sides]
        tried: list[dict[float, float]] = [{}, {}]
        for _ in range(self._config.trials):
            exponents = [next_exponent(each) for each in tried]
            rates = [start * SPACING**exponent for start, exponent in zip(starts, exponents, strict=True)]
            for side, exponent, run in zip(
                tried, exponents, self._runs([(0, rates[0], 0), (1, rates[1], 0)]), strict=True
            ):
                side[exponent] = math.inf if run["loss"] is None else run["loss"]
        best = []
        for side, start, losses in zip(self._sides, starts, tried, strict=True):
            exponent = min(losses, key=losses.__getitem__)
            if math.isinf(losses[exponent]):
                raise UserError(f"'{side.label}' has no finite loss at any of {len(losses)} rates")
            best.append(start * SPACING**exponent)
            if exponent in (min(losses), max(losses)):
                words = "the best rate is an outermost one tried; give more --trials"
                self._warnings.append(f"{side.label}: {words}")
        self._report(f"rates: {self._sides[0].label} {best[0]:.3g}, {self._sides[1].label} {best[1]:.3g}")
        return best[0], best[1]

    def _runs(self, wanted: Sequence[tuple[int, float, int]]) -> list[dict[str, Any]]:
        """Runs of (side, rate, seed), from the ledger or made now; raises `_BudgetSpent`."""
        track, sides = self._track, self._sides
        keys = [f"{track.name}/{track.steps}/{sides[i].digest}/lr{lr:.6g}/s{seed}" for i, lr, seed in wanted]
        missing = [place for place, key in enumerate(keys) if key not in self._known]
        seconds, runs = self._config.limits()
        if missing and (time.monotonic() - self._began >= seconds or self._made + len(missing) > runs):
            raise _BudgetSpent
        futures = {}
        for place in missing:
            i, lr, seed = wanted[place]
            side = sides[i]
            futures[place] = self._pool.submit(_make_run, track, side.opt, lr, seed, side.settings)
        for place, future in futures.items():
            label = sides[wanted[place][0]].label
            try:
                made: ProblemRun | str = future.result()
            except BrokenExecutor:
                raise UserError(f"'{label}': a worker process died; rerun the command to resume") from None
            row: dict[str, Any] = {"run": keys[place], "optimizer": label}
            if isinstance(made, str):
                raise UserError(f"'{label}': {made}")
            row |= {"loss": finite(made.loss), "steps": made.steps, "losses": finite(made.losses)}
            self._known[keys[place]] = row
            self._made += 1
            _add_line(self._config.ledger / "runs.jsonl", row)
        return [self._known[key] for key in keys]


def _make_run(
    track: SmallProblem, opt: str, lr: float, seed: int, settings: dict[str, Any]
) -> ProblemRun | str:
    """A run in this process, or why it failed."""
    try:
        return train(track, opt, lr, seed, settings)
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}"


def _steps_saved(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> float | None:
    """Share of the baseline's steps that the contender saves at equal loss; None where it never has the baseline's."""
    if not pairs or any(run["loss"] is None for pair in pairs for run in pair):
        return None
    base, other = (
        ([run["steps"][1:] for run in side], [run["losses"][1:] for run in side])
        for side in zip(*pairs, strict=True)
    )
    found = compute_saved(*base, *other, n_bootstrap=0)
    return found.saved if found.is_reached else None


# ---- the ledger ----
def _read_lines(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of the ledger; a line that a kill cut short is left out."""
    return list(sound_objects(file.read_bytes())) if file.is_file() else []


def _add_line(file: Path, row: dict[str, Any]) -> None:
    """Add a row under a lock: several judgements may share a ledger."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a+b") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        end = opened.seek(0, 2)
        opened.seek(max(0, end - 1))
        cut = b"" if end == 0 or opened.read(1) == b"\n" else b"\n"  # the line of a killed writer
        opened.write(cut + json.dumps(finite(row)).encode() + b"\n")
