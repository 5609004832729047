"""Train a model; resumes automatically."""

import os
from typing import Any

from danalab.cli._shared.training_job import run_job
from danalab.train.config.train_config import TrainConfig as Flags


def run(flags: Flags) -> int:
    """Train a model into a run folder; the same command resumes it."""
    return run_job(lambda: flags, as_json=flags.json)


def resolved_config(flags: Flags) -> dict[str, Any]:
    """The resolved configuration, for --print-config."""
    from danalab.data import vocabulary_of
    from danalab.train.config.resolve import resolve
    from danalab.train.parallel.layout import data_parallel_ranks

    ranks = data_parallel_ranks(flags, os.environ)
    return resolve(flags, vocabulary_of(flags.data, flags.tokenizer), world_size=ranks).config.as_dict()
