"""One setting for every track: how many steps does an optimizer save against AdamW, without a search for its rate?

    rates     of each side the middle one of those to try on a small model, the same on every track; all else default
    factor    (steps of AdamW) / (steps of the contender) at the higher of their final losses, seed by seed
    answer    the geometric mean over seeds for each track, that over tracks, and the worst track

A run that fails is as slow as its length allows. Runs are in the ledger, so a call that was killed goes on; the answer
is a row of all-tracks.jsonl there, with its command. The factors have no test: three seeds show sizes, not certainty.
"""

import math
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean

from danalab.errors import UserError
from danalab.judge import JudgeConfig
from danalab.judge.judge import RunMaker, open_workers
from danalab.judge.tracks import TRACKS, get_track
from danalab.judge.verdict import log_speed
from danalab.judge.workers import PlannedRun, RunResult, read_contestant
from danalab.scaling.optimizers import rates_to_try

BASELINE = "adamw"
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class TrackFactor:
    """The result on one track."""

    track: str
    steps: int
    factor: float
    """Geometric mean over seeds of the factor by which the contender needs fewer steps."""
    factors: tuple[float, ...]
    losses: tuple[tuple[float | None, float | None], ...]
    """(baseline, contender) of each seed; None: the run failed."""


@dataclass(frozen=True)
class AllTracks:
    """The answer; `factor` is the geometric mean over tracks."""

    contender: str
    baseline: str
    rates: tuple[float, float]
    """Of contender and baseline."""
    factor: float
    worst: str
    tracks: tuple[TrackFactor, ...]
    command: str

    def sentence(self) -> str:
        """The answer in one sentence."""
        lowest = min(each.factor for each in self.tracks)
        sides = f"{self.contender} at rate {self.rates[0]:g} against {self.baseline} at {self.rates[1]:g}"
        return (f"{sides}: {self.factor:.2f} times fewer steps in the geometric mean of {len(self.tracks)} tracks"
                f" ({len(SEEDS)} seeds each); the worst is {self.worst}, {lowest:.2f}.")  # fmt: skip


def all_tracks(config: JudgeConfig, report: Callable[[str], None] = lambda line: None) -> AllTracks:
    """Run the only contestant and AdamW on every track.

    UserError: an unknown contestant, or a budget that ends before the last run; what was run is kept.
    """
    config.check()
    sides = (read_contestant(BASELINE), read_contestant(config.contestants[0]))
    rates = [sorted(rates_to_try(side.opt))[1] for side in sides]
    found = []
    with open_workers(config) as workers:
        maker = RunMaker(config, workers, report, {})
        for name in TRACKS:
            track = get_track(name, config.steps)
            pairs: list[tuple[RunResult, RunResult]] = []
            for seed in SEEDS:
                planned = [PlannedRun(name, track.steps, *each, seed) for each in zip(sides, rates, strict=True)]
                results = maker.runs(planned)
                if results is None:
                    raise UserError(f"--budget {config.budget}: ended on track {name}; ask again, and it goes on")
                pairs.append((results[0], results[1]))
            logs = [log_speed(*pair) for pair in pairs]
            factors = tuple(round(math.exp(each), 4) for each in logs)
            losses = tuple((base.loss, other.loss) for base, other in pairs)
            found.append(TrackFactor(name, track.steps, round(math.exp(fmean(logs)), 4), factors, losses))
            report(f"{name}: {found[-1].factor:.2f} times fewer steps")
    mean = math.exp(fmean(math.log(each.factor) for each in found))
    words = ["danalab", "judge", "--all-tracks", sides[1].label]
    words += ["--steps", str(config.steps)] if config.steps else []
    answer = AllTracks(
        sides[1].label, BASELINE, (rates[1], rates[0]), round(mean, 4), min(found, key=lambda each: each.factor).track,
        tuple(found), shlex.join(words),
    )  # fmt: skip
    maker.ledger.add_answer("all-tracks.jsonl", asdict(answer))
    return answer
