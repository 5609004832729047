"""What a judgement answers: the verdict, its sentence, and the compute that a contender saves."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from danalab.judge.sequential import LEAST_PAIRS, normal_bounds
from danalab.judge.workers import RunResult


@dataclass(frozen=True)
class PairedVerdict:
    """The answer to one question."""

    contender: str
    baseline: str
    track: str
    decision: str
    """better, worse, no difference or undecided."""
    effect: float
    """Mean of loss(contender) - loss(baseline) over paired seeds; negative is better."""
    low: float
    high: float
    """Confidence sequence of the effect at the last look: of the test for normal differences and of the bets on any
    differences up to `bound` together."""
    normal: tuple[float, float]
    """That of the test for normal differences alone."""
    bound: float
    """How far a pair may speak against the answer; declared before the first pair."""
    alpha: float
    """Error of this answer."""
    contenders: int
    """How many contenders share the error of the call."""
    difference: float
    """Losses that differ by less count as equal."""
    noise: float
    """Standard deviation of the baseline's loss over seeds: the noise floor."""
    pairs: int
    saved: tuple[float, float, float] | None
    """Share of the baseline's compute that the contender needs less for its final loss: the mean over pairs and its
    confidence sequence, with error `alpha` if its logarithms are normal; None where a pair lets it not be told."""
    rates: tuple[float, float]
    """Peak learning rates of contender and baseline."""
    runs: int
    """Runs that were made for it, not read from the ledger."""
    seconds: float
    look: int
    unit: str
    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Signs of stuck seeds, and of differences that are not normal."""

    def sentence(self) -> str:
        """The answer in one sentence."""
        sides = f"{self.contender} against {self.baseline} on {self.track} is undecided"
        if not self.pairs:
            return f"{sides}: no pair of runs was complete when the budget ended."
        change = f"{abs(self.effect):.4f} {self.unit} {'lower' if self.effect < 0 else 'higher'}"
        words = {
            "better": f"{self.contender} is better than {self.baseline} on {self.track}: its loss is {change}",
            "worse": f"{self.contender} is worse than {self.baseline} on {self.track}: its loss is {change}",
            "no difference": f"{self.contender} and {self.baseline} differ by less than {self.difference:g} "
                             f"{self.unit} on {self.track}: {change}",
            "undecided": f"{sides}: {change}",
        }[self.decision]  # fmt: skip
        normal, low_high = _interval(self.normal), _interval((self.low, self.high))
        interval = f"{low_high} for any differences up to {self.bound:.2g}, {normal} for symmetric or normal ones"
        saved = "" if self.saved is None else (
            f"; {self.saved[0]:+.0%} of the compute saved ({self.saved[1]:+.0%} to {self.saved[2]:+.0%} if normal)"
        )  # fmt: skip
        shared = "" if self.contenders == 1 else f", its share among {self.contenders} contenders"
        trust = f"intervals hold at any time of looking, with error {self.alpha:.2g}{shared}"
        parts = [f"{words} ({interval}){saved}; {self.pairs} paired seeds, noise {self.noise:.4f}; {trust}."]
        return " ".join([*parts, *(f"Warning: {line}." for line in self.warnings)])


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:+.4f} to {ends[1]:+.4f}"


def compute_saved(pairs: Sequence[tuple[RunResult, RunResult]], alpha: float) -> tuple[float, float, float] | None:
    """Compute saved, pair by pair: 1 - (steps of the contender) / (steps of the baseline) at the higher final loss."""
    if len(pairs) < LEAST_PAIRS or any(side.loss is None for pair in pairs for side in pair):
        return None
    logs = []
    for base, other in pairs:
        assert base.loss is not None
        assert other.loss is not None
        target = max(base.loss, other.loss)
        logs.append(math.log(_reached(other, target) / _reached(base, target)))
    most = math.log(pairs[0][0].steps[-1])  # no run is faster or slower by more than its length
    low, high = (min(max(end, -most), most) for end in normal_bounds(logs, alpha))
    return 1 - math.exp(fmean(logs)), 1 - math.exp(high), 1 - math.exp(low)


def _reached(run: RunResult, target: float) -> float:
    """Step at which a curve first falls to a loss, linear between measurements."""
    points = list(zip(run.steps, run.losses, strict=True))
    for (s0, y0), (s1, y1) in itertools.pairwise(points):
        if y1 <= target:
            return s1 if y0 <= y1 else s0 + (s1 - s0) * (y0 - target) / (y0 - y1)
    return float(run.steps[-1])


def verdict_from_row(row: dict[str, Any]) -> PairedVerdict:
    values = {name: row[name] for name in PairedVerdict.__dataclass_fields__}
    for name, unknown in (("low", -math.inf), ("high", math.inf), ("effect", math.nan), ("noise", math.nan)):
        values[name] = unknown if values[name] is None else values[name]
    values |= {name: tuple(values[name]) for name in ("rates", "failures", "warnings")}
    low, high = values["normal"]
    values["normal"] = (-math.inf if low is None else low, math.inf if high is None else high)
    return PairedVerdict(**{**values, "saved": tuple(values["saved"]) if values["saved"] else None})
