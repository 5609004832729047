"""Is one optimizer better than another? Paired seeds, and an end as soon as it is known."""

import sys
from dataclasses import asdict, dataclass

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.experiments.settings import JudgeConfig
from danalab.train.config.fields import PathText

EXIT_CODES = {"better": 0, "no difference": 1, "worse": 1, "undecided": 3}


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags, JudgeConfig):
    baseline: Positional[PathText]
    """Optimizer: NAME, NAME:SETTING=VALUE,..., FILE.py:NAME or module:NAME."""
    contender: Positional[PathText]
    """The optimizer that may be better."""


def run(flags: Flags) -> int:
    """Judge a contender against a baseline. Exit code 0: it is better; 1: it is not; 3: the budget ended undecided."""
    from danalab.experiments.judge import judge

    verdict = judge(flags, lambda line: print(line, file=sys.stderr, flush=True))
    if not flags.print_json({**asdict(verdict), "lines": verdict.lines()}):
        print("\n".join(verdict.lines()))
    return EXIT_CODES[verdict.decision]
