"""Settings of `danalab demo`, `danalab judge` and `danalab optim compare`, which are their flags. Needs no torch."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Lt

from danalab.errors import UserError
from danalab.train.config.flags import Count, JsonFlags, PathText, Positional, Positive, Section, setting

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class DemoConfig(Section, JsonFlags):
    """Settings of `danalab demo`."""

    out: Path = setting(Path("demo"), "Folder for all results of the demo.")
    tokens: Count = setting(750_000, "Training tokens of each run.")
    vocab_size: Count = setting(1024, "Size of the byte-pair encoding trained on the corpus [tokens].")
    seeds: Count = setting(1, "Runs at each optimizer's best learning rate, with different seeds.")
    jobs: Count | None = setting(None, "Runs at the same time, one thread each; default one for each core.")


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(Section, JsonFlags):
    """Settings of `danalab judge`."""

    baseline: Positional[PathText] = setting(
        help="Optimizer: NAME, NAME:SETTING=VALUE,..., FILE.py:NAME or module:NAME."
    )
    contender: Positional[PathText] = setting(help="The optimizer that may be better.")
    track: str = setting("char", "Track: char, language, images, nanogpt, quadratic or matrix.")
    data: PathText | None = setting(
        None, "Data set of your own instead of a track; nanogpt's model is trained on it."
    )
    steps: Count | None = setting(None, "Length of a run [steps]; default the track's.")
    budget: str = setting("10m", "Stop after this time (90s, 10m, 2h) or number of runs (200runs).")
    difference: Positive = setting(0.01, "Losses that differ by less count as equal [nats].")
    alpha: Annotated[float, Gt(0), Lt(1)] = setting(
        0.05, "Error probability if differences are normal, valid at any stopping time."
    )
    trials: Count = setting(5, "Learning rates that each side tries.")
    ledger: Path = setting(
        Path("judge"), "Folder of runs and verdicts; a repeated question reuses its verdict."
    )
    jobs: Count = setting(2, "Runs at a time.")

    def limits(self) -> tuple[float, float]:
        """(seconds, runs) of the budget, one of them infinite; UserError: it is neither."""
        found = re.fullmatch(r"(\d+\.?\d*)(s|m|h|runs)", self.budget.strip())
        if found is None or not float(found[1]):
            raise UserError(
                f"--budget {self.budget}: is a time such as 10m, 90s or 2h, or a number such as 200runs"
            )
        value = float(found[1])
        return (math.inf, value) if found[2] == "runs" else (value * _UNITS[found[2]], math.inf)


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Section, JsonFlags):
    """Settings of `danalab optim compare`."""

    opts: tuple[PathText, ...] = setting(
        ("adamw", "ademamix", "muon", "adana", "dana-star-mk4"),
        "Optimizers; danalab optim list shows them all.",
    )
    problems: tuple[str, ...] = setting(
        ("quadratic", "matrix", "language"), "Problems: quadratic, matrix, language, char, images, nanogpt."
    )
    trials: Count = setting(6, "Learning rates tried for each optimizer on each problem.")
    seeds: Count = setting(3, "Runs at the best learning rate.")
    jobs: Count | None = setting(
        None, "Searches at the same time, one thread each; default one for each core."
    )
    quick: bool = setting(
        False, "A tenth of the steps, 3 learning rates, one seed: a fast test that everything works."
    )
    out: Path = setting(Path("optim-compare"), "Folder for the page, figures and table.")
