"""Is one optimizer better than another? Paired seeds, and an end as soon as it is known."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.train.config.fields import PathText

EXIT_CODES = {"better": 0, "no difference": 1, "worse": 1, "undecided": 3}


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags):
    baseline: Positional[PathText]
    """Optimizer: NAME, NAME:SETTING=VALUE,..., FILE.py:NAME or module:NAME."""
    contender: Positional[PathText]
    """The optimizer that may be better."""
    track: str = "char"
    """Problem: char, stdlib, images or nanogpt."""
    data: PathText | None = None
    """Data set of your own instead of a track; nanogpt's model is trained on it."""
    steps: int | None = None
    """Length of a run [steps]; default the track's."""
    budget: str = "10m"
    """Most that the verdict may cost: a time (90s, 10m, 2h) or a number of runs (200runs)."""
    difference: float = 0.01
    """Losses that differ by less count as equal [nats]."""
    alpha: float = 0.05
    """Probability of a wrong answer if differences are normal, however often one looks."""
    trials: int = 5
    """Learning rates that each side tries."""
    ledger: Path = Path("judgements")
    """Folder of runs and verdicts; a question with a verdict is answered from it."""
    jobs: int = 2
    """Runs at a time."""


def run(flags: Flags) -> int:
    """Judge a contender against a baseline. Exit code 0: it is better; 1: it is not; 3: the budget ended undecided."""
    from danalab.experiments.judge import JudgeConfig, judge

    settings = {name: value for name, value in vars(flags).items() if name != "json"}
    verdict = judge(JudgeConfig(**settings), lambda line: print(line, file=sys.stderr, flush=True))
    if not flags.print_json({**asdict(verdict), "lines": verdict.lines()}):
        print("\n".join(verdict.lines()))
    return EXIT_CODES[verdict.decision]
