"""Train a run to answer tasks, by the rewards of its answers."""

from typing import Any

from danalab.cli._shared.training_job import resolved_stage, run_job
from danalab.post.settings import RlFlags as Flags
from danalab.train.config.train_config import TrainConfig


def run(flags: Flags) -> int:
    """Train a run by rewards of its answers to tasks, into a run folder of its own; the same command resumes it."""
    return run_job(lambda: _configuration(flags), as_json=flags.json)


def resolved_config(flags: Flags) -> dict[str, Any]:
    """The resolved configuration, for --print-config."""
    return resolved_stage(lambda: _configuration(flags))


def _configuration(flags: Flags) -> TrainConfig:
    from danalab.post.rl import configure

    return configure(flags)
