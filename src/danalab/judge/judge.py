"""Is B better than A? The same trials of learning rates for both, paired seeds, and an end as soon as it is known.

    rates       `trials` runs of each side with seed 0, by the search of `optim compare`; its best rate is kept
    pairs       seed by seed, both sides from the same weights and data; d = loss(B) - loss(A)
    stop        when two confidence sequences of the mean of d, for normal differences and for any up to a bound,
                exclude 0 or lie within +- difference, or when the budget is spent (`danalab.judge.verdict`)

Seed 0 chooses rates and judges nothing. Every run is in the ledger, so a judgement that was killed goes on, and sides
that were judged before are not run again. A question with a verdict is answered from the ledger; `again` asks it with
fresh seeds, and the answers to one question share alpha (`danalab.judge.verdict.spent`).

`ablate` judges a contestant without one of its settings against the whole one, for each setting.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import stdev
from typing import Any

from danalab.errors import UserError
from danalab.judge import JudgeConfig
from danalab.judge.ledger import Ledger, stored_runs
from danalab.judge.tracks import get_track
from danalab.judge.verdict import PairedVerdict, bounds, compute_saved, decide, spent, verdict_from_row, warnings
from danalab.judge.workers import Contestant, PlannedRun, RunResult, Workers, read_contestant, without
from danalab.scaling.rate_search import next_exponent
from danalab.showcase.problems import SmallProblem
from danalab.showcase.trials import SPACING, settings_for, usual_lr
from danalab.sweep.run import open_executor

MOST_PAIRS = 1000
BOUND_SHARE = 0.1  # of the loss before training; a run that is stuck on a plateau loses about as much
SEEDS_OF_A_LOOK = 10_000  # seeds of the k-th look begin at this many times k - 1


@dataclass(frozen=True)
class Judged:
    """A verdict with the runs that it rests on."""

    verdict: PairedVerdict
    pairs: tuple[tuple[RunResult, RunResult], ...]
    """(baseline, contender) of each seed; none where the answer came from the ledger."""


def judge(config: JudgeConfig, report: Callable[[str], None] = lambda line: None) -> list[Judged]:
    """A verdict on each contender against the first contestant, in order; the contenders share alpha equally.

    UserError: unknown contestants or track, numbers out of range, fewer than two contestants, or a baseline that
    diverges or fails at every rate.
    """
    config.check()
    baseline, *contenders = (read_contestant(word) for word in config.contestants)
    for i, each in enumerate(contenders):
        if each.digest == baseline.digest or each.digest in {other.digest for other in contenders[:i]}:
            raise UserError(f"contestant '{each.label}': the same optimizer with the same settings is there already")
    track = get_track(config.track_name, config.steps)
    with open_workers(config) as workers:
        return [
            _Judgement(config, track, (baseline, each), len(contenders), workers, report).verdict()
            for each in contenders
        ]


ANSWERS = {"worse": "helps", "better": "hurts"}
"""Decision on a contestant without a part -> what the part does; the other decisions stay."""


def ablate(config: JudgeConfig, report: Callable[[str], None] = lambda line: None) -> dict[str, Judged | str]:
    """Setting of the only contestant -> the verdict on it without that setting; the settings share alpha equally.

    A string says why nothing can be trained without it. Settings at the optimizer's own values are no parts.
    UserError: as of `judge`, or there are no parts.
    """
    config.check()
    whole, track = read_contestant(config.contestants[0]), get_track(config.track_name, config.steps)
    own = {name: setting.default for name, setting in whole.spec.settings.items()}
    own |= settings_for(whole.spec, track.steps, track.omega)
    parts = [name for name, value in whole.settings if value != own[name]]
    if not parts:
        raise UserError(
            f"--ablate {whole.label}: has no setting that differs from the optimizer's own, so nothing can be left out;"
            " give some, such as adana:kappa=0.8,beta2=0.99"
        )
    found: dict[str, Judged | str] = {}
    with open_workers(config) as workers:
        for part in parts:
            sides = (whole, without(whole, part))
            try:
                found[part] = _Judgement(config, track, sides, len(parts), workers, report).verdict()
            except NothingTrains as error:
                if error.side is whole:
                    raise
                found[part] = str(error)
    return found


class NothingTrains(UserError):
    """A contestant has no finite loss at any of its rates."""

    def __init__(self, side: Contestant, why: str):
        super().__init__(f"contestant '{side.label}' has no finite loss at any of its rates: {why}")
        self.side = side


def open_workers(config: JudgeConfig) -> Workers:
    """Where the runs are made; as a context, which ends them."""
    jobs = config.jobs or 2
    return Workers(jobs if config.executor == "pool" else open_executor(config.executor, config.ledger))


class RunMaker:
    """Runs from the ledger, or made now while the budget lasts."""

    def __init__(
        self,
        config: JudgeConfig,
        workers: Workers,
        report: Callable[[str], None],
        stored: dict[tuple[str, int], RunResult],
    ):
        """`stored`: of AdamW on the track of all runs, by rate and seed."""
        self._workers, self._report, self._run_limit = workers, report, config.run_limit
        self.ledger, self.began, self.made = Ledger(config.ledger), time.monotonic(), 0
        self._limits = config.limits()
        self.failures: dict[str, str] = {}
        self._stored = stored
        self._longest = 0.0  # time of the longest run so far [seconds]

    def runs(self, trials: Sequence[PlannedRun]) -> list[RunResult] | None:
        """Results of some runs, from the ledger or made now; None: the budget does not allow them."""
        known = {trial.key: self.ledger.run(trial) for trial in trials}
        missing = [trial for trial in trials if known[trial.key] is None]
        seconds, runs = self._limits
        if time.monotonic() - self.began >= seconds or self.made + len(missing) > runs:
            return None
        limit = self._run_limit or max(60.0, 20 * self._longest)
        for trial, result in self._workers.execute(missing, limit):
            self.ledger.add_run(trial, result)
            self.made += 1
            self._longest = max(self._longest, result.seconds)
            known[trial.key] = result
            self._take_stored(trial, result)
            if result.failure:
                self.failures[trial.contestant.label] = f"lr {trial.lr:.3g}, seed {trial.seed}: {result.failure}"
                self._report(f"{trial.contestant.label}, {self.failures[trial.contestant.label]}")
        return [result for result in known.values() if result is not None]

    def _take_stored(self, trial: PlannedRun, result: RunResult) -> None:
        """Use the stored runs of AdamW once one of them was reproduced here to the last bit."""
        if (trial.contestant.opt, trial.contestant.settings) != ("adamw", ()) or not self._stored:
            return
        stored, self._stored = self._stored, {}
        own = stored.pop((f"{trial.lr:.6g}", trial.seed), None)
        if own is not None and own.losses == result.losses:
            for (lr, seed), each in stored.items():
                self.ledger.add_run(replace(trial, lr=float(lr), seed=seed), each)
            self._report(f"{trial.contestant.label}: {len(stored)} runs are known for this type of processor")


class _Judgement:
    """One contender against the baseline."""

    def __init__(
        self,
        config: JudgeConfig,
        track: SmallProblem,
        sides: tuple[Contestant, Contestant],
        contenders: int,
        workers: Workers,
        report: Callable[[str], None],
    ):
        """`sides`: baseline and contender; `contenders`: how many share alpha."""
        self._config, self._track, self._report, self._sides = config, track, report, sides
        self._maker = RunMaker(config, workers, report, stored_runs(track.name, track.steps))
        self._ledger, self._runs = self._maker.ledger, self._maker.runs
        self._contenders = contenders
        self._share = config.alpha / contenders
        self._bound = math.nan  # known after the runs with seed 0
        # Another bound is another question to the same seeds, which were seen: it counts as a look at them.
        asked = {name: value for name, value in self._question().items() if name != "bound"}
        earlier = [row for row in self._ledger.verdicts() if asked.items() <= (row.get("question") or {}).items()]
        settled = [row for row in earlier if row["decision"] != "undecided" and row["question"] == self._question()]
        self._settled = next(iter(settled), None)
        # An undecided question goes on with its own seeds: the confidence sequence allows that.
        ended = [row.get("look", 1) for row in earlier if row in settled or row["question"] != self._question()]
        self._look = 1 + max(ended, default=0)
        self._alpha = spent(self._share, self._look)

    def verdict(self) -> Judged:
        if self._settled is not None and not self._config.again:
            self._report(f"{self._sides[1].label}: answered from {self._ledger.folder / 'judge.jsonl'}")
            return Judged(verdict_from_row(self._settled), ())
        rates = self._tune()
        differences: list[float] = []
        pairs: list[tuple[RunResult, RunResult]] = []
        for seed, base, other in self._pairs(rates):
            pairs.append((base, other))
            difference = _difference(base, other)
            if difference is None:
                continue
            differences.append(difference)
            now = bounds(differences, self._alpha, self._bound)
            self._report(
                f"seed {seed}: {self._sides[0].label} {_words(base)}, {self._sides[1].label} {_words(other)}; "
                f"difference {now.mean:+.4f} ({now.low:+.4f} to {now.high:+.4f})"
            )
            if self._decision(differences) != "undecided":
                break
        verdict = self._concluded(differences, pairs, rates)
        settings = {side.label: dict(side.settings) for side in self._sides}
        self._ledger.add_answer("judge.jsonl", {"question": self._question(), **asdict(verdict), "settings": settings})
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
        return decide(differences, self._alpha, self._config.difference, self._bound)

    def _tune(self) -> tuple[float, float]:
        """The best rate of each side among equally many, with seed 0; both sides at a time."""
        starts = [usual_lr(side.spec, self._track) for side in self._sides]
        tried: list[dict[float, float]] = [{}, {}]
        start = math.nan  # loss before training
        for _ in range(self._config.trials):
            exponents = [next_exponent(each) for each in tried]
            rates = [usual * SPACING**exponent for usual, exponent in zip(starts, exponents, strict=True)]
            results = self._runs([self._plan(i, rate, 0) for i, rate in enumerate(rates)])
            if results is None:
                break
            for side, exponent, result in zip(tried, exponents, results, strict=True):
                side[exponent] = math.inf if result.loss is None else result.loss
                if result.loss is not None:
                    start = result.losses[0]  # of weights of seed 0, whoever trains them
        for side, losses in zip(self._sides, tried, strict=True):
            if not any(map(math.isfinite, losses.values())):
                if (why := self._maker.failures.get(side.label)) is None and not losses:
                    raise UserError(f"--budget {self._config.budget}: ended before the first run of '{side.label}'")
                raise NothingTrains(side, why or "see the ledger")
        self._bound = self._config.bound or max(BOUND_SHARE * start, 2 * self._config.difference)
        rates = [usual * SPACING ** min(losses, key=lambda exponent: losses[exponent])
                 for usual, losses in zip(starts, tried, strict=True)]  # fmt: skip
        self._report(f"rates: {self._sides[0].label} {rates[0]:.3g}, {self._sides[1].label} {rates[1]:.3g}")
        return rates[0], rates[1]

    def _concluded(
        self, differences: list[float], pairs: list[tuple[RunResult, RunResult]], rates: tuple[float, float]
    ) -> PairedVerdict:
        baseline, contender = self._sides
        now = bounds(differences, self._alpha, self._bound)
        losses = [base.loss for base, _ in pairs if base.loss is not None]
        return PairedVerdict(
            contender.label, baseline.label, self._track.name,
            self._decision(differences), now.mean, now.low, now.high, now.normal, self._bound,
            self._alpha, self._contenders, self._config.difference,
            stdev(losses) if len(losses) > 1 else math.nan, len(pairs),
            compute_saved(pairs, self._alpha), (rates[1], rates[0]),
            self._maker.made, time.monotonic() - self._maker.began, self._look,
            self._track.unit.partition("[")[2].rstrip("]"),
            tuple(f"{label}: {why}" for label, why in self._maker.failures.items()),
            warnings(differences, self._bound),
        )  # fmt: skip

    def _question(self) -> dict[str, Any]:
        baseline, contender = self._sides
        return {
            "track": self._track.name, "steps": self._track.steps, "baseline": baseline.digest,
            "contender": contender.digest, "difference": self._config.difference, "alpha": self._share,
            "trials": self._config.trials, "bound": self._config.bound,
        }  # fmt: skip


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
