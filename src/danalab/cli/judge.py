"""Is one optimizer better than another? Paired seeds, and an end as soon as it is known."""

import sys
from dataclasses import asdict

from danalab.experiments.settings import JudgeConfig
from danalab.train.config.flags import Answer

EXIT_CODES = {"better": 0, "no difference": 1, "worse": 1, "undecided": 3}


def run(flags: JudgeConfig) -> Answer:
    """Judge a contender against a baseline. Exit code 0: it is better; 1: it is not; 3: the budget ended undecided."""
    from danalab.experiments.judge import judge

    verdict = judge(flags, lambda line: print(line, file=sys.stderr, flush=True))
    facts = {**asdict(verdict), "lines": verdict.lines()}
    return Answer(facts, verdict.lines(), EXIT_CODES[verdict.decision])


VERBS = {"judge": (JudgeConfig, run)}
