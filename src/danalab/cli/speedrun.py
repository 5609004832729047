"""From text to a chat in one command."""

import sys

from danalab.post.speedrun.settings import SpeedrunConfig
from danalab.train.config.flags import Answer


def run(flags: SpeedrunConfig) -> Answer | int:
    """Base, mid-training, fine-tuning, reinforcement learning, scores, report; the same command continues."""
    from danalab.train.system.signals import StopRequest

    with StopRequest() as stop:  # before the imports below, which take seconds
        from danalab.experiments.formats import as_text
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
    lines = [
        as_text(*scores_table(speedrun)),
        f"\nshares of right answers in percent, with standard errors; report in {report}\n",
        "talk to it in the terminal, or start the page:",
        *(f"  {command}" for command in talk_commands(speedrun)),
    ]
    return Answer({**as_json(speedrun), "report": str(report)}, lines)


VERBS = {"speedrun": (SpeedrunConfig, run)}
