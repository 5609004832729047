"""Is B better than A? The same trials of learning rates for both, paired seeds, and an end as soon as it is known.

    rates       `trials` runs of each side with seed 0, by the search of `optim compare`; its best rate is kept
    pairs       seed by seed, both sides from the same weights and data; d = loss(B) - loss(A)
    stop        when the confidence sequence of the mean of d excludes 0 or lies within +- difference,
                or when the budget is spent (`danalab.judge.sequential`)

Seed 0 chooses rates and judges nothing. Every run is in the ledger, so a judgement that was killed goes on, and sides
that were judged before are not run again. A question with a verdict is answered from the ledger; `again` asks it with
fresh seeds, and the answers to one question share alpha (`danalab.judge.sequential.spent`).
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any

from danalab import __version__
from danalab.errors import UserError
from danalab.judge import JudgeConfig
from danalab.judge.contestants import Contestant, read_contestant
from danalab.judge.ledger import Ledger, stored_runs
from danalab.judge.sequential import bounds, decide, spent
from danalab.judge.tracks import get_track
from danalab.judge.workers import ExecutorWorkers, PlannedRun, RunResult, Workers
from danalab.showcase.problems import SmallProblem
from danalab.showcase.trials import SPACING, next_exponent, usual_lr

LEAST_PAIRS = 3
MOST_PAIRS = 200
SEEDS_OF_A_LOOK = 10_000  # seeds of the k-th look begin at this many times k - 1


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
    """Confidence sequence of the effect at the last look."""
    alpha: float
    """Its error."""
    difference: float
    """Losses that differ by less count as equal."""
    noise: float
    """Standard deviation of the baseline's loss over seeds: the noise floor."""
    pairs: int
    saved: tuple[float, float, float] | None
    """Share of the baseline's compute that the contender needs less for its final loss: the mean over pairs and its 95%
    interval; None where a pair lets it not be told."""
    rates: tuple[float, float]
    """Peak learning rates of contender and baseline."""
    runs: int
    """Runs that were made for it, not read from the ledger."""
    seconds: float
    look: int
    unit: str
    failures: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The answer in one sentence."""
        sides = f"{self.contender} against {self.baseline} on {self.track} is undecided"
        if not self.pairs:
            return f"{sides}: no pair of runs was complete when the budget ended."
        change = f"{abs(self.effect):.4f} {self.unit} {'lower' if self.effect < 0 else 'higher'}"
        interval = f"{self.low:+.4f} to {self.high:+.4f}"
        words = {
            "better": f"{self.contender} is better than {self.baseline} on {self.track}: its loss is {change}",
            "worse": f"{self.contender} is worse than {self.baseline} on {self.track}: its loss is {change}",
            "no difference": f"{self.contender} and {self.baseline} differ by less than {self.difference:g} "
                             f"{self.unit} on {self.track}: {change}",
            "undecided": f"{sides}: {change}",
        }[self.decision]  # fmt: skip
        saved = ""
        if self.saved is not None:
            mean, low, high = self.saved
            saved = f"; {mean:+.0%} of the compute saved ({low:+.0%} to {high:+.0%})"
        return f"{words} ({interval} at any time of looking){saved}; {self.pairs} paired seeds, noise {self.noise:.4f}."


@dataclass(frozen=True)
class Judged:
    """A verdict with the runs that it rests on."""

    verdict: PairedVerdict
    pairs: tuple[tuple[RunResult, RunResult], ...]
    """(baseline, contender) of each seed; none where the answer came from the ledger."""


def judge(config: JudgeConfig, report: Callable[[str], None] = lambda line: None) -> list[Judged]:
    """A verdict on each contender against the first contestant, in order.

    UserError: unknown contestants or track, numbers out of range, fewer than two contestants, or a baseline that
    diverges or fails at every rate.
    """
    config.check()
    baseline, *contenders = (read_contestant(word) for word in config.contestants)
    for i, each in enumerate(contenders):
        if each.digest == baseline.digest or each.digest in {other.digest for other in contenders[:i]}:
            raise UserError(f"contestant '{each.label}': the same optimizer with the same settings is there already")
    track = get_track(config.track_name, config.steps)
    with Workers(config.jobs or 2) if config.executor == "pool" else ExecutorWorkers.open(config) as workers:
        return [_Judgement(config, track, baseline, each, workers, report).verdict() for each in contenders]


class _Judgement:
    """One contender against the baseline."""

    def __init__(
        self,
        config: JudgeConfig,
        track: SmallProblem,
        baseline: Contestant,
        contender: Contestant,
        workers: Workers | ExecutorWorkers,
        report: Callable[[str], None],
    ):
        self._config, self._track, self._workers, self._report = config, track, workers, report
        self._sides = (baseline, contender)
        self._ledger, self._began, self._made = Ledger(config.ledger), time.monotonic(), 0
        self._limits = config.limits()
        self._failures: dict[str, str] = {}
        self._stored = stored_runs(track.name, track.steps)
        self._longest = 0.0  # time of the longest run so far [seconds]
        earlier = [row for row in self._ledger.verdicts() if row.get("question") == self._question()]
        self._settled = next((row for row in earlier if row["decision"] != "undecided"), None)
        # An undecided question goes on with its own seeds: the confidence sequence allows that.
        self._look = 1 + sum(row["decision"] != "undecided" for row in earlier) if config.again else 1
        self._alpha = spent(config.alpha, self._look)

    def verdict(self) -> Judged:
        if self._settled is not None and not self._config.again:
            self._report(f"{self._sides[1].label}: answered from {self._ledger.folder / 'judge.jsonl'}")
            return Judged(_from_row(self._settled), ())
        rates = self._tune()
        differences: list[float] = []
        pairs: list[tuple[RunResult, RunResult]] = []
        for seed, base, other in self._pairs(rates):
            pairs.append((base, other))
            difference = _difference(base, other)
            if difference is None:
                continue
            differences.append(difference)
            now = bounds(differences, self._alpha)
            self._report(
                f"seed {seed}: {self._sides[0].label} {_words(base)}, {self._sides[1].label} {_words(other)}; "
                f"difference {now.mean:+.4f} ({now.low:+.4f} to {now.high:+.4f})"
            )
            if self._decision(differences) != "undecided":
                break
        verdict = self._concluded(differences, pairs, rates)
        self._ledger.add_verdict(self._row(verdict))
        return Judged(verdict, tuple(pairs))

    def _pairs(self, rates: tuple[float, float]) -> Iterator[tuple[int, RunResult, RunResult]]:
        """(seed, baseline, contender), in order, while the budget lasts; as many are made at a time as there are jobs.

        A run that was killed or ran out of time ends them: it says nothing of either side.
        """
        first = 1 + SEEDS_OF_A_LOOK * (self._look - 1)
        seeds = list(range(first, first + MOST_PAIRS))
        while seeds:
            block, results = seeds[: max(1, (self._config.jobs or 2) // 2)], None
            while block and results is None:
                results = self._runs([self._plan(i, rates[i], seed) for seed in block for i in (0, 1)])
                block = block[:-1] if results is None else block
            if results is None:
                return
            for seed, base, other in zip(block, results[::2], results[1::2], strict=True):
                if base.from_outside or other.from_outside:
                    return
                yield seed, base, other
            seeds = seeds[len(block) :]

    def _plan(self, side: int, lr: float, seed: int) -> PlannedRun:
        return PlannedRun(self._track.name, self._track.steps, self._sides[side], lr, seed)

    def _decision(self, differences: list[float]) -> str:
        enough = len(differences) >= LEAST_PAIRS
        return decide(differences, self._alpha, self._config.difference) if enough else "undecided"

    def _tune(self) -> tuple[float, float]:
        """The best rate of each side among equally many, with seed 0; both sides at a time."""
        starts = [usual_lr(side.spec, self._track) for side in self._sides]
        tried: list[dict[float, float]] = [{}, {}]
        for _ in range(self._config.trials):
            exponents = [next_exponent(each) for each in tried]
            rates = [start * SPACING**exponent for start, exponent in zip(starts, exponents, strict=True)]
            results = self._runs([self._plan(i, rate, 0) for i, rate in enumerate(rates)])
            if results is None:
                break
            for side, exponent, result in zip(tried, exponents, results, strict=True):
                side[exponent] = math.inf if result.loss is None else result.loss
        for side, losses in zip(self._sides, tried, strict=True):
            if not any(map(math.isfinite, losses.values())):
                why = self._failures.get(side.label, "the budget ended before the first run")
                raise UserError(f"contestant '{side.label}' has no finite loss at any of its rates: {why}")
        rates = [start * SPACING ** min(losses, key=lambda exponent: losses[exponent])
                 for start, losses in zip(starts, tried, strict=True)]  # fmt: skip
        self._report(f"rates: {self._sides[0].label} {rates[0]:.3g}, {self._sides[1].label} {rates[1]:.3g}")
        return rates[0], rates[1]

    def _runs(self, trials: Sequence[PlannedRun]) -> list[RunResult] | None:
        """Results of some runs, from the ledger or made now; None: the budget does not allow them."""
        known = {trial.key: self._ledger.run(trial) for trial in trials}
        missing = [trial for trial in trials if known[trial.key] is None]
        seconds, runs = self._limits
        if time.monotonic() - self._began >= seconds or self._made + len(missing) > runs:
            return None
        limit = self._config.run_limit or max(60.0, 20 * self._longest)
        for trial, result in self._workers.execute(missing, limit):
            self._ledger.add_run(trial, result)
            self._made += 1
            self._longest = max(self._longest, result.seconds)
            known[trial.key] = result
            self._take_stored(trial, result)
            if result.failure:
                self._failures[trial.contestant.label] = f"lr {trial.lr:.3g}, seed {trial.seed}: {result.failure}"
                self._report(f"{trial.contestant.label}, {self._failures[trial.contestant.label]}")
        return [result for result in known.values() if result is not None]

    def _take_stored(self, trial: PlannedRun, result: RunResult) -> None:
        """Use the stored runs of AdamW once one of them was reproduced here to the last bit."""
        if (trial.contestant.opt, trial.contestant.settings) != ("adamw", ()) or not self._stored:
            return
        stored, self._stored = self._stored, {}
        own = stored.pop((f"{trial.lr:.6g}", trial.seed), None)
        if own is not None and own.losses == result.losses:
            for (lr, seed), each in stored.items():
                self._ledger.add_run(replace(trial, lr=float(lr), seed=seed), each)
            self._report(f"{trial.contestant.label}: {len(stored)} runs are known for this type of processor")

    def _concluded(
        self, differences: list[float], pairs: list[tuple[RunResult, RunResult]], rates: tuple[float, float]
    ) -> PairedVerdict:
        baseline, contender = self._sides
        now = bounds(differences, self._alpha)
        losses = [base.loss for base, _ in pairs if base.loss is not None]
        return PairedVerdict(
            contender.label, baseline.label, self._track.name,
            self._decision(differences), now.mean, now.low, now.high, self._alpha, self._config.difference,
            stdev(losses) if len(losses) > 1 else math.nan, len(pairs), _saved(pairs), (rates[1], rates[0]),
            self._made, time.monotonic() - self._began, self._look, self._track.unit.partition("[")[2].rstrip("]"),
            tuple(f"{label}: {why}" for label, why in self._failures.items()),
        )  # fmt: skip

    def _question(self) -> dict[str, Any]:
        baseline, contender = self._sides
        return {
            "track": self._track.name, "steps": self._track.steps, "baseline": baseline.digest,
            "contender": contender.digest, "difference": self._config.difference, "alpha": self._config.alpha,
            "trials": self._config.trials,
        }  # fmt: skip

    def _row(self, verdict: PairedVerdict) -> dict[str, Any]:
        from danalab.train.system.device import machine

        settings = {side.label: dict(side.settings) for side in self._sides}
        return {"question": self._question(), **asdict(verdict), "settings": settings, "danalab": __version__,
                "machine": machine("cpu")}  # fmt: skip


def _difference(baseline: RunResult, contender: RunResult) -> float | None:
    """loss(contender) - loss(baseline); None where both have none.

    A run without a loss counts with the loss that the pair began with: one failure is no proof, several are.
    """
    if baseline.loss is None and contender.loss is None:
        return None
    start = (baseline if contender.loss is None else contender).losses[0]
    base, other = (start if side.loss is None else side.loss for side in (baseline, contender))
    return other - base


def _words(result: RunResult) -> str:
    return "failed" if result.loss is None else f"{result.loss:.4f}"


def _saved(pairs: Sequence[tuple[RunResult, RunResult]]) -> tuple[float, float, float] | None:
    """Compute saved, pair by pair: 1 - (steps of the contender) / (steps of the baseline) at the higher final loss."""
    from scipy.stats import t

    if len(pairs) < LEAST_PAIRS or any(side.loss is None for pair in pairs for side in pair):
        return None
    logs = []
    for base, other in pairs:
        assert base.loss is not None
        assert other.loss is not None
        target = max(base.loss, other.loss)
        logs.append(math.log(_reached(other, target) / _reached(base, target)))
    half = float(t.ppf(0.975, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
    middle = fmean(logs)
    return 1 - math.exp(middle), 1 - math.exp(middle + half), 1 - math.exp(middle - half)


def _reached(run: RunResult, target: float) -> float:
    """Step at which a curve first falls to a loss, linear between measurements."""
    points = list(zip(run.steps, run.losses, strict=True))
    for (s0, y0), (s1, y1) in itertools.pairwise(points):
        if y1 <= target:
            return s1 if y0 <= y1 else s0 + (s1 - s0) * (y0 - target) / (y0 - y1)
    return float(run.steps[-1])


def _from_row(row: dict[str, Any]) -> PairedVerdict:
    values = {name: row[name] for name in PairedVerdict.__dataclass_fields__}
    for name, unknown in (("low", -math.inf), ("high", math.inf), ("effect", math.nan), ("noise", math.nan)):
        values[name] = unknown if values[name] is None else values[name]
    values |= {name: tuple(values[name]) for name in ("rates", "failures")}
    return PairedVerdict(**{**values, "saved": tuple(values["saved"]) if values["saved"] else None})
