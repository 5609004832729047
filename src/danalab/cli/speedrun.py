"""From text to a chat in one command."""

import sys
from dataclasses import dataclass

from danalab.cli._shared.options import JsonFlags
from danalab.post.speedrun.settings import SpeedrunConfig


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags, SpeedrunConfig):
    pass


def run(flags: Flags) -> int:
    """Base, mid-training, fine-tuning, reinforcement learning, scores, report; the same command continues."""
    from danalab.train.system.signals import StopRequest

    with StopRequest() as stop:  # before the imports below, which take seconds
        from danalab.experiments.formats import print_table
        from danalab.post.speedrun.pipeline import InterruptedRunError, Speedrun
        from danalab.post.speedrun.report import as_json, scores_table, talk_commands, write_report
        from danalab.train.callbacks.console import log_to_stderr

        log_to_stderr()
        speedrun = Speedrun(flags)
        try:
            speedrun.run(stop)
        except InterruptedRunError as interrupted:
            print(f"{flags.out}: interrupted; the same command continues", file=sys.stderr)
            return interrupted.code
        report = write_report(speedrun)
    if flags.print_json({**as_json(speedrun), "report": str(report)}):
        return 0
    headings, rows = scores_table(speedrun)
    print_table(headings, rows)
    print(f"\nshares of right answers in percent, with standard errors; report in {report}\n")
    print("talk to it in the terminal, or start the page:")
    for command in talk_commands(speedrun):
        print(f"  {command}")
    return 0
