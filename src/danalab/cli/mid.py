"""Continue pre-training on conversations: every token is learned."""

import os
from typing import Any

from danalab.chat.stages.settings import MidFlags as Flags
from danalab.cli._shared.training_job import run_job
from danalab.train.config.train_config import TrainConfig


def run(flags: Flags) -> int:
    """Continue a run's pre-training on conversations, into a run folder of its own; the same command resumes it."""
    return run_job(lambda: _configuration(flags), as_json=flags.json)


def resolved_config(flags: Flags) -> dict[str, Any]:
    """The resolved configuration, for --print-config."""
    from danalab.train.config.resolve import resolve
    from danalab.train.parallel.layout import data_parallel_ranks
    from danalab.train.stage import stage_kind

    config = _configuration(flags)
    dataset = stage_kind(config).open_data(config)
    return resolve(config, dataset, world_size=data_parallel_ranks(config, os.environ)).config.as_dict()


def _configuration(flags: Flags) -> TrainConfig:
    from danalab.chat.stages.finetuning import configure
    from danalab.chat.stages.settings import MidConfig

    return configure(flags, MidConfig)
