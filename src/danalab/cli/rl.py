"""Train a run to answer tasks, by the rewards of its answers."""

import os
from typing import Any

from danalab.chat.stages.rl.settings import RlFlags as Flags
from danalab.cli._shared.training_job import run_job


def run(flags: Flags) -> int:
    """Train a run by rewards of its answers to tasks, into a run folder of its own; the same command resumes it."""

    def configure():
        from danalab.chat.stages.rl.stage import configure

        return configure(flags)

    return run_job(configure, as_json=flags.json)


def resolved_config(flags: Flags) -> dict[str, Any]:
    """The resolved configuration, for --print-config."""
    from danalab.chat.stages.rl.stage import configure
    from danalab.train.config.resolve import resolve
    from danalab.train.parallel.layout import data_parallel_ranks
    from danalab.train.stage import stage_kind

    config = configure(flags)
    dataset = stage_kind(config).open_data(config)
    return resolve(config, dataset, world_size=data_parallel_ranks(config, os.environ)).config.as_dict()
