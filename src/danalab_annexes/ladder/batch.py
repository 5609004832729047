"""Study: the batch. From the tuned runs at several batches of equal tokens to critical batches, with intervals.

    log L(B) = log L0 + s log(1 + B / B0)        final loss at batch B [sequences], the rate tuned at each batch
    critical batch:  L(B) = (1 + RISE) L0

A run at batch B is worth tokens / (1 + B / B0) tokens (arXiv 1812.06162, 2505.13738), and the loss is a power of the
tokens near a horizon. A few batches at one horizon do not tell s from B0 (far below B0 only s / B0 acts), so the batch
of a stated loss is given in place of B0. Intervals repeat the tuning, as in `danalab_annexes.ladder.horizon`.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from danalab.ladder.fit.statistics import Interval, log_interval
from danalab.ladder.fit.tuning import Row, Tuned, has_several_batches, horizon_of, resampler, rungs_of
from danalab.ladder.studies import Address, Analysis, LadderStudy, PageSection
from danalab.report.formats import Table, span
from danalab.report.tables import tuned_table
from danalab_annexes.ladder.budget import tuned_size
from danalab_annexes.ladder.paired import PairedTest, paired_runs, paired_tests, tests_table

RISE = 0.01
"""Share by which the loss at the critical batch is above that of small batches."""
LEAST_BATCHES = 4
"""From which a critical batch is fitted."""


@dataclass(frozen=True)
class CriticalBatch:
    """The critical batch of an optimizer on a size and horizon."""

    opt: str
    params: int
    horizon: float
    batch: float
    """[sequences]; infinite where the loss does not rise."""
    interval: Interval | None
    """None: no seed is repeated, so that the noise is not known."""
    measured: tuple[int, int]
    """Least and largest batch; beyond, the critical batch is extrapolated."""


@dataclass(frozen=True)
class BatchAnalysis:
    """The results of a ladder with several batches."""

    rungs: list[list[Tuned]]
    """The tuned runs of all batches at each size and horizon, by optimizer and batch."""
    critical: list[CriticalBatch]
    tests: list[PairedTest]
    """Of each pair of optimizers at each batch where their settings differ."""

    @property
    def tuned(self) -> list[Tuned]:
        """The tuned runs of all batches."""
        return [each for rung in self.rungs for each in rung]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        critical, tests = ([asdict(each) for each in part] for part in (self.critical, self.tests))
        return {"tuned": [each.as_dict() for each in self.tuned], "critical": critical, "tests": tests}


def analyse_batches(
    tuned: Sequence[Tuned], rows: Sequence[Row], baseline: str, *, n_bootstrap: int = 200, seed: int = 0
) -> BatchAnalysis | None:
    """The results over batches; None where no optimizer has several at equal size and tokens."""
    several = list(filter(has_several_batches, rungs := rungs_of(tuned)))
    if not several:
        return None
    critical = []
    for rung in several:
        for opt in dict.fromkeys(each.opt for each in rung):
            mine = [each for each in rung if each.opt == opt]
            if len(mine) >= LEAST_BATCHES:
                critical.append(_critical(mine, rows, n_bootstrap, np.random.default_rng(seed)))
    tests = sorted(
        paired_tests(paired_runs(tuned, baseline)), key=lambda each: (each.params, each.first, each.second, each.batch)
    )
    return BatchAnalysis(rungs, critical, tests)


def critical_batch(batches: Sequence[float], losses: Sequence[float]) -> float:
    """The batch (of ascending ones, `LEAST_BATCHES` or more) whose loss is `RISE` above small ones'; infinite: none is.

    The smallest batches are left out where they are themselves `RISE` above the least loss.
    """
    b, y = np.asarray(batches, float), np.log(losses)
    first = min(int(np.argmax(y <= y.min() + math.log1p(RISE))), len(b) - LEAST_BATCHES + 1)
    b, y = b[first:], y[first:] - y[first:].mean()
    scales = np.geomspace(b[0], 8 * b[-1], 80)
    x = np.log1p(b / scales[:, None])
    x -= x.mean(axis=1, keepdims=True)
    squares = np.sum(x**2, axis=1)
    slopes = np.maximum(x @ y / squares, 0.0)
    best = int(np.argmax(slopes**2 * squares))
    power = math.log1p(RISE) / slopes[best] if slopes[best] > 0 else math.inf
    return float(scales[best] * math.expm1(power)) if power < 30 else math.inf


def _critical(tuned: Sequence[Tuned], rows: Sequence[Row], n: int, rng: np.random.Generator) -> CriticalBatch:
    batches = [each.batch for each in tuned]
    value = critical_batch(batches, [each.loss for each in tuned])
    ends = np.cumsum([len(each.runs) for each in tuned])
    freedom, drawn = int(ends[-1]) - len(tuned), []
    if freedom:
        draw = resampler([tuned_size(each, rows) for each in tuned])
        drawn = [critical_batch(batches, [part.mean() for part in np.split(draw(rng), ends[:-1])]) for _ in range(n)]
    one = tuned[0]
    interval, measured = log_interval(value, drawn, freedom), (batches[0], batches[-1])
    return CriticalBatch(one.opt, one.params, horizon_of(one.runs[0]), value, interval, measured)


def critical_table(critical: Sequence[CriticalBatch]) -> Table:
    """A line for each optimizer, size and horizon; a bound where the batch is beyond those measured."""
    lines = []
    for each in critical:
        least, most = each.measured
        words = f"> {most}" if each.batch > most else f"< {least}" if each.batch < least else f"{each.batch:.0f}"
        f, within = f"{each.horizon:.3g}", span(each.interval, ".0f")
        lines.append([each.opt, f"{each.params:,}", f, words, within, f"{least} to {most}"])
    return ["optimizer", "parameters", "f", "critical batch", "95% interval", "batches measured"], lines


class Batches(LadderStudy):
    """Several batches at equal size and tokens: `BatchAnalysis`."""

    name = "batches"
    sections = (
        PageSection("batch", "The batch", ("batch",), ("batches", "critical-batch", "batch-pairs"), before="laws"),
    )
    tables_before = "saved"
    folded = ("batch-pairs",)

    def analyse(self, analysis: Analysis, rows: Sequence[Row], n_bootstrap: int, seed: int) -> None:
        batches = analyse_batches(analysis.every, rows, analysis.baseline, n_bootstrap=n_bootstrap, seed=seed)
        if batches is not None:
            analysis.studies[self.name] = batches

    def as_dict(self, analysis: Analysis) -> dict[str, Any]:
        batches = analysis.studies.get(self.name)
        return {"batches": None if batches is None else batches.as_dict()}

    def tables(self, analysis: Analysis, address: Address | None, folder: Path | None) -> dict[str, tuple[str, Table]]:
        batches = analysis.studies.get(self.name) or BatchAnalysis([], [], [])
        return {
            "batches": (
                "Tuned runs of all batches [sequences per step] at equal tokens",
                tuned_table(analysis.opts, batches.tuned, address),
            ),
            "critical-batch": (
                f"Critical batch [sequences]: the loss is {RISE:.0%} above that of small batches",
                critical_table(batches.critical),
            ),
            "batch-pairs": ("Pairs of optimizers at each batch, paired by seed", tests_table(batches.tests)),
        }

    def figures(self) -> dict[str, Any]:
        from danalab_annexes.ladder.figures import batch_figure

        return {
            "batch": (
                batch_figure,
                "Final loss (left) and best learning rate (right) against the batch at equal tokens, each tuned by "
                "itself: mean over seeds, bars from lowest to highest (hollow: one seed). Lines: the law of the best "
                "rate.",
            )
        }
