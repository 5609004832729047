"""The referee: is one optimizer better than another? Equal trials, paired seeds, and a test valid at any time."""

import math
from dataclasses import dataclass
from pathlib import Path

from danalab.errors import UserError
from danalab.train.config.fields import PathText

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """What is judged, on which track, and at which cost."""

    contestants: tuple[PathText, ...] = ()
    """The baseline, then one or more contenders: NAME, NAME:SETTING=VALUE,..., FILE.yaml, FILE.py:NAME, module:NAME."""
    ablate: bool = False
    """Leave out one setting of the only contestant at a time: which of them help?"""
    all_tracks: bool = False
    """Run the only contestant and AdamW on every track at one rate each: how many steps does it save?"""
    track: str = "char"
    """Problem: char, synthetic, stdlib, images or nanogpt."""
    data: PathText | None = None
    """Data set of your own instead of a track; nanogpt's model is trained on it."""
    steps: int | None = None
    """Length of a run [steps]; default the track's."""
    budget: str = "10m"
    """Most that one contender may cost: a time (90s, 10m, 2h) or a number of runs (200runs)."""
    difference: float = 0.01
    """Losses that differ by less count as equal [nats]."""
    alpha: float = 0.05
    """Probability of any wrong answer, however often one looks; contenders of one call share it equally."""
    bound: float | None = None
    """How far a pair may speak against the answer [nats]; default a tenth of the loss before training."""
    trials: int = 5
    """Learning rates that each side tries."""
    ledger: Path = Path("judgements")
    """Folder of runs and verdicts; a question with a verdict is answered from it."""
    again: bool = False
    """Ask a settled question again, with fresh seeds and a smaller share of alpha."""
    jobs: int | None = None
    """Runs at a time; default two, one for each side."""
    executor: PathText = "pool"
    """Where runs are made: pool (processes here), or FILE.py:NAME as in danalab sweep."""
    run_limit: float | None = None
    """Time after which a run is killed [seconds]; default 20 times the longest so far, at least 60."""

    @property
    def track_name(self) -> str:
        return self.track if self.data is None else f"data:{self.data}"

    def limits(self) -> tuple[float, float]:
        """(seconds, runs) of the budget, one of them infinite; UserError: it is neither."""
        text = self.budget.strip()
        number, unit = (text[:-4], "runs") if text.endswith("runs") else (text[:-1], text[-1:])
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not 0 < value < math.inf or unit not in ("runs", *_UNITS):
            raise UserError(f"--budget {self.budget}: is a time such as 10m, 90s or 2h, or a number such as 200runs")
        return (math.inf, int(value)) if unit == "runs" else (value * _UNITS[unit], math.inf)

    def check(self) -> None:
        """UserError: numbers out of range, too few contestants, or options that exclude each other."""
        if self.ablate or self.all_tracks:
            flag = "--ablate" if self.ablate else "--all-tracks"
            if self.ablate and self.all_tracks:
                raise UserError("--ablate and --all-tracks exclude each other; leave one of them out")
            if len(self.contestants) != 1:
                raise UserError(f"{flag}: {len(self.contestants)} contestants are given; it must be one")
            if self.all_tracks and self.track_name != "char":
                raise UserError("--all-tracks runs every track; leave --track and --data out")
        elif len(self.contestants) < 2:
            raise UserError("judge: name a baseline and at least one contender, such as: danalab judge adamw adana")
        for name, low, high in (("alpha", 0.0, 1.0), ("difference", 0.0, float("inf"))):
            if not low < getattr(self, name) < high:
                raise UserError(f"--{name} {getattr(self, name):g}: is out of range; it must be above {low:g}"
                                + ("" if high == float("inf") else f" and below {high:g}"))  # fmt: skip
        if self.bound is not None and not self.difference < self.bound < math.inf:
            raise UserError(
                f"--bound {self.bound:g}: is out of range; it must be above --difference {self.difference:g}"
            )
        for name in ("steps", "trials", "jobs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value}: is below 1")
        if self.executor in ("slurm", "submitit"):
            raise UserError(f"--executor {self.executor}: a judgement waits for its runs; pool or FILE.py:NAME can")
        self.limits()
