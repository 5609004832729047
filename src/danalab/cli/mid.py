"""Continue pre-training on conversations: every token is learned."""

from typing import Any

from danalab.cli._shared.training_job import finetuning, resolved_stage, run_job
from danalab.post.settings import MidConfig
from danalab.post.settings import MidFlags as Flags


def run(flags: Flags) -> int:
    """Continue a run's pre-training on conversations, into a run folder of its own; the same command resumes it."""
    return run_job(lambda: finetuning(flags, MidConfig), as_json=flags.json)


def resolved_config(flags: Flags) -> dict[str, Any]:
    """The resolved configuration, for --print-config."""
    return resolved_stage(lambda: finetuning(flags, MidConfig))
